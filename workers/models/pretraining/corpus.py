"""The text the bundled model learns from: generated English and Python's own prose.

The generated part is the same everywhere for one seed. The prose part is the docstrings of
the standard library and of a few libraries, so it differs a little between their versions;
the model card records the versions and a hash.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from workers.models.pretraining.demo_data import support_tone, unit_sums
from workers.models.pretraining.english import conversation, paragraph
from workers.models.pretraining.open_talk import draw_everyday, open_conversation

_SKIPPED_FOLDERS = {"test", "tests", "idlelib", "site-packages", "__pycache__", "lib2to3"}
_SENTENCE = re.compile(r"^[A-Z][^{}<>|=_\\]*[.!?]$", re.DOTALL)

#: No open text shares so many words in a row with a row of the demo's data.
OVERLAP_WORDS = 5

#: A conversation, or a stretch of prose.
Document = list[dict[str, str]] | str


@dataclass(frozen=True, slots=True)
class Corpus:
    training: tuple[Document, ...]
    #: Generated like the rest, never trained on.
    held_out: tuple[Document, ...]
    sha256: str


def build_corpus(
    *,
    conversations: int,
    paragraphs: int,
    prose: int,
    packages: tuple[str, ...] = (),
    held_out: int,
    seed: int,
) -> Corpus:
    """Generate and collect the documents, shuffled by ``seed``.

    Parameters
    ----------
    conversations, paragraphs, held_out : int
        Documents to generate; a tenth as many held-out documents are prose.
    prose : int
        At most this many docstring paragraphs.
    packages : tuple of str
        Installed libraries whose docstrings are read beside the standard library's.
    """
    # S311: these draws choose words, not secrets.
    random = Random(seed)  # noqa: S311
    held: list[Document] = [
        conversation(random) if index % 3 else paragraph(random) for index in range(held_out)
    ]
    seen = {_key(document) for document in held}
    documents: list[Document] = []
    documents += (conversation(random) for _ in range(conversations))
    documents += (paragraph(random) for _ in range(paragraphs))
    documents = [document for document in documents if _key(document) not in seen]
    lines = list(extract_prose(packages))
    random.shuffle(lines)
    lines = lines[: prose + held_out // 10]
    held += lines[: held_out // 10]
    documents += lines[held_out // 10 :]
    random.shuffle(documents)
    digest = hashlib.sha256()
    for document in documents:
        digest.update(_key(document).encode() + b"\0")
    return Corpus(tuple(documents), tuple(held), digest.hexdigest())


def build_open_corpus(
    *, documents: int, packages: tuple[str, ...] = (), held_out: int, seed: int
) -> Corpus:
    """Open conversations and texts, with some of everything that ``build_corpus`` has.

    What shares ``OVERLAP_WORDS`` words in a row with the demo's data is left out.
    """
    random = Random(seed)  # noqa: S311
    prose = extract_prose(packages)

    def draw() -> Document:
        kind = random.random()
        if kind < 0.55:
            return open_conversation(random)
        if kind < 0.65:
            return draw_everyday(random)
        if kind < 0.88:
            return conversation(random)
        return paragraph(random) if kind < 0.93 else random.choice(prose)

    held = [open_conversation(random) for _ in range(held_out)]
    seen = {_key(document) for document in held}
    found = [draw() for _ in range(documents)]
    kept = [one for one in found if _key(one) not in seen and not overlaps_with_demo(one)]
    digest = hashlib.sha256()
    for document in kept:
        digest.update(_key(document).encode() + b"\0")
    return Corpus(tuple(kept), tuple(held), digest.hexdigest())


def overlaps_with_demo(document: Document) -> bool:
    """Whether the document shares ``OVERLAP_WORDS`` words in a row with the demo's data."""
    texts = [document] if isinstance(document, str) else [part["content"] for part in document]
    return any(not _runs(text).isdisjoint(_demo_runs()) for text in texts)


@cache
def _demo_runs() -> frozenset[tuple[str, ...]]:
    texts = [part["content"] for row in support_tone() for part in row["messages"]]
    texts += [row[key] for row in unit_sums() for key in ("instruction", "input", "output")]
    return frozenset().union(*(_runs(text) for text in texts))


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z]+|[0-9]+", text.lower())
    return {tuple(words[at : at + OVERLAP_WORDS]) for at in range(len(words) - OVERLAP_WORDS + 1)}


def _key(document: Document) -> str:
    return document if isinstance(document, str) else repr(document)


@cache
def extract_prose(packages: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Paragraphs of plain sentences from the docstrings of Python and of libraries, sorted."""
    found = set(extract_standard_library_prose())
    for package in packages:
        found.update(extract_docstring_prose(package))
    return tuple(sorted(found))


@cache
def extract_standard_library_prose() -> tuple[str, ...]:
    """Paragraphs of plain sentences from the docstrings of Python's own modules, sorted."""
    return _extract(Path(sysconfig.get_path("stdlib")))


@cache
def extract_docstring_prose(package: str) -> tuple[str, ...]:
    """The same of one installed library.

    Raises
    ------
    ModuleNotFoundError
        When it is not installed: the recipe would silently be another one.
    """
    root = Path(sysconfig.get_path("purelib")) / package
    if not root.is_dir():
        raise ModuleNotFoundError(f"The recipe reads the docstrings of {package}. Install it.")
    return _extract(root)


def _extract(root: Path) -> tuple[str, ...]:
    found: set[str] = set()
    for path in sorted(root.rglob("*.py")):
        if _SKIPPED_FOLDERS & set(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                found.update(_paragraphs(ast.get_docstring(node, clean=False)))
    return tuple(sorted(found))


def _paragraphs(docstring: str | None) -> list[str]:
    if not docstring:
        return []
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(docstring))
    texts = (" ".join(block.split()) for block in blocks)
    return [text for text in texts if 40 <= len(text) <= 600 and _SENTENCE.match(text)]
