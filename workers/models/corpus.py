"""The text the bundled model learns from: generated English and Python's own prose.

The generated part is the same everywhere for one seed. The prose part is the
docstrings of the standard library that runs the recipe, so it differs a little
between Python versions; the model card records the version and a hash.
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

from workers.models.english import conversation, paragraph

_SKIPPED_FOLDERS = {"test", "tests", "idlelib", "site-packages", "__pycache__", "lib2to3"}
_SENTENCE = re.compile(r"^[A-Z][^{}<>|=_\\]*[.!?]$", re.DOTALL)

#: A conversation, or a stretch of prose.
Document = list[dict[str, str]] | str


@dataclass(frozen=True, slots=True)
class Corpus:
    training: tuple[Document, ...]
    #: Generated like the rest, never trained on.
    held_out: tuple[Document, ...]
    sha256: str


def build_corpus(
    *, conversations: int, paragraphs: int, prose: int, held_out: int, seed: int
) -> Corpus:
    """Generate and collect the documents, shuffled by ``seed``.

    Parameters
    ----------
    conversations, paragraphs, held_out : int
        Documents to generate; a tenth as many held-out documents are prose.
    prose : int
        At most this many docstring paragraphs.
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
    lines = list(extract_standard_library_prose())
    random.shuffle(lines)
    lines = lines[: prose + held_out // 10]
    held += lines[: held_out // 10]
    documents += lines[held_out // 10 :]
    random.shuffle(documents)
    digest = hashlib.sha256()
    for document in documents:
        digest.update(_key(document).encode() + b"\0")
    return Corpus(tuple(documents), tuple(held), digest.hexdigest())


def _key(document: Document) -> str:
    return document if isinstance(document, str) else repr(document)


@cache
def extract_standard_library_prose() -> tuple[str, ...]:
    """Paragraphs of plain sentences from the docstrings of Python's own modules, sorted."""
    root = Path(sysconfig.get_path("stdlib"))
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
