"""Reading a zone's base model as data: its configuration and its tokenizer.

The market never loads weights. A source is ``bundled:<name>`` (a directory shipped with the
workers), a directory on this machine, or a Hugging Face hub id.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

# Loads what is asked of it when it is asked, as a process that reads no hub never does; its errors
# come with a download.
import huggingface_hub

import workers.protocol
from marketplace.common.errors import NotFound, UserError
from marketplace.fleet.text_encoder import TokenizerFiles
from workers.protocol.base_files import hash_base_files
from workers.protocol.model_shape import ModelShape, check_shape

if TYPE_CHECKING:
    import huggingface_hub.errors

_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_CHAT_TEMPLATE = "chat_template.jinja"
_TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
_GENERATION, _CONFIG = "generation_config.json", "config.json"
#: As ``TokenizerFiles`` has them.
_BESIDE_TOKENIZER = (_TOKENIZER_CONFIG, _CHAT_TEMPLATE, _TOOL_TEMPLATE, _GENERATION, _CONFIG)
_SHAPE = "shape.json"
#: Seconds that reading a model's modules may take.
_WALL_S = 180
#: What that program needs of our environment, which holds the market's secrets.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
_ROOT = Path(__file__).parents[2]
#: How sources that are shipped with the workers begin.
BUNDLED = "bundled:"
_BUNDLED_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_BUNDLED_DIRECTORY = Path(workers.protocol.__file__).parents[1] / "models"


def find_bundled_directory(source: str) -> Path | None:
    """The directory of a bundled or local model; ``None`` for a hub id.

    Raises
    ------
    UserError
        ``unknown_base_model``: a bundled name that is not there.
    """
    if source.startswith(BUNDLED):
        name = source.removeprefix(BUNDLED)
        directory = _BUNDLED_DIRECTORY / name
        if not _BUNDLED_NAME.fullmatch(name) or not directory.is_dir():
            raise _build_unknown_error(f"No model named {name!r} is bundled.")
        return directory
    directory = Path(source)
    return directory if directory.is_absolute() and directory.is_dir() else None


def is_bundled(source: str) -> bool:
    return source.startswith(BUNDLED)


@cache
def hash_bundled_model(source: str) -> str:
    """The hash of a bundled model's files; empty for other sources, which have revisions.

    Raises
    ------
    UserError
        ``unknown_base_model``.
    """
    directory = find_bundled_directory(source) if is_bundled(source) else None
    return "" if directory is None else hash_base_files(directory)


@dataclass(frozen=True, slots=True)
class ModelArchive:
    """A bundled model's folder as one tar."""

    name: str
    content: bytes
    sha256: str


@lru_cache(maxsize=1)
def pack_bundled_model(source: str) -> ModelArchive:
    """Pack a bundled model's folder, a few MB; equal folders are equal files.

    Raises
    ------
    NotFound
        ``published_base``: others have a name on a hub, or are their operator's own.
    """
    directory = find_bundled_directory(source) if is_bundled(source) else None
    if directory is None:
        raise NotFound("published_base", "This base model is on a hub, or is its operator's own.")
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for path in sorted(directory.iterdir()):
            entry = tarfile.TarInfo(f"{directory.name}/{path.name}")
            entry.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(entry, content)
    packed = file.getvalue()
    return ModelArchive(directory.name, packed, hashlib.sha256(packed).hexdigest())


def read_model_config(source: str, revision: str | None = None) -> dict[str, object]:
    """A model's ``config.json``, from this machine or the hub.

    Raises
    ------
    UserError
        ``unknown_base_model``: it cannot be had, or is not a JSON object.
    """
    try:
        config = json.loads(_find_config(source, revision).read_text())
    except (OSError, ValueError) as error:
        raise _build_unknown_error(f"The config.json of {source} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise _build_unknown_error(f"The config.json of {source} is not a JSON object.")
    return config


def read_generation_config(source: str, revision: str | None = None) -> object | None:
    """A model's ``generation_config.json``; ``None`` where it has none."""
    directory = find_bundled_directory(source)
    name = _GENERATION
    path = _fetch_if_there(source, name, revision) if directory is None else directory / name
    return json.loads(path.read_text()) if path is not None and path.is_file() else None


def _find_config(source: str, revision: str | None) -> Path:
    directory = find_bundled_directory(source)
    if directory is not None:
        return directory / _CONFIG
    try:
        return Path(huggingface_hub.hf_hub_download(source, _CONFIG, revision=revision))
    except huggingface_hub.errors.HFValidationError:
        raise _build_unknown_error(
            f"{source!r} is neither a directory on this machine nor a hub id such as "
            "organisation/model."
        ) from None
    except huggingface_hub.errors.GatedRepoError:
        raise _build_unknown_error(
            f"{source} is gated: accept its terms on the hub and set HF_TOKEN to a token "
            "that may read it."
        ) from None


def read_model_shape(
    source: str, revision: str | None = None, *, file: Path | None = None
) -> ModelShape:
    """The shape of a model: from a file, or off its modules by a program of its own.

    Parameters
    ----------
    file
        What ``finetender-node shape`` printed; a bundled model has one in its directory.

    Raises
    ------
    UserError
        ``unknown_base_model``: the model cannot be trained, or there is no way to find out here.
    """
    try:
        directory = _find_config(source, revision).parent
        if file is None and is_bundled(source):
            file = directory / _SHAPE
        text = _describe_modules(source, directory) if file is None else file.read_text()
        return check_shape(json.loads(text))
    except (OSError, ValueError) as error:
        raise _build_unknown_error(f"The shape of {source} cannot be read: {error}") from None


def _describe_modules(source: str, directory: Path) -> str:
    """Ask ``transformers`` in a process of its own: the market's have no PyTorch."""
    if find_spec("torch") is None:
        raise _build_unknown_error(
            f"This machine has no PyTorch to read the modules of {source} with. Run `finetender-"
            f"node shape {source} > shape.json` on one that has, and name the file with --shape."
        )
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "workers", "shape", str(directory)],
            cwd=_ROOT,
            env=kept,
            capture_output=True,
            text=True,
            timeout=_WALL_S,
        )
    except subprocess.TimeoutExpired:
        raise _build_unknown_error(f"The modules of {source} take over {_WALL_S} s.") from None
    if done.returncode:
        raise _build_unknown_error((done.stderr.strip().splitlines() or ["no reason"])[-1])
    return done.stdout


def _build_unknown_error(message: str) -> UserError:
    return UserError("unknown_base_model", message, param="base_model")


@lru_cache(maxsize=8)
def find_tokenizer_files(source: str, revision: str | None = None) -> TokenizerFiles:
    """Where a model's tokenizer is on this machine; fetched from the hub if it is not here yet.

    Parameters
    ----------
    source : str
        A directory, a ``tokenizer.json`` with its files beside it, or a hub id.

    Raises
    ------
    UserError
        ``unknown_tokenizer``: it cannot be had.
    """
    directory = (
        Path(source).parent if source.endswith(_TOKENIZER) else find_bundled_directory(source)
    )
    if directory is not None:
        beside = [directory / name for name in _BESIDE_TOKENIZER]
        return TokenizerFiles(
            directory / _TOKENIZER, *(path if path.is_file() else None for path in beside)
        )
    try:
        return TokenizerFiles(
            Path(huggingface_hub.hf_hub_download(source, _TOKENIZER, revision=revision or "main")),
            *(_fetch_if_there(source, name, revision) for name in _BESIDE_TOKENIZER),
        )
    except (OSError, ValueError) as error:
        raise UserError(
            "unknown_tokenizer",
            f"The tokenizer of {source} cannot be read: {error}",
            param="base_model",
        ) from error


def _fetch_if_there(source: str, name: str, revision: str | None) -> Path | None:
    try:
        return Path(huggingface_hub.hf_hub_download(source, name, revision=revision or "main"))
    except huggingface_hub.errors.LocalEntryNotFoundError:
        # The hub could not be asked: only where it never is, the local copy is all there is.
        if huggingface_hub.is_offline_mode():
            return None
        raise
    except huggingface_hub.errors.EntryNotFoundError:
        return None
