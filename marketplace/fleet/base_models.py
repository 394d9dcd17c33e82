"""Reading a zone's base model as data: its configuration and its tokenizer.

The market never loads weights. A source is ``bundled:<name>`` (a directory shipped with the
workers), a directory on this machine, or a Hugging Face hub id.
"""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from pathlib import Path

from huggingface_hub import hf_hub_download, is_offline_mode
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
)

import workers.protocol
from marketplace.common.errors import UserError
from marketplace.fleet.text_encoder import TokenizerFiles
from workers.protocol.base_files import hash_base_files
from workers.protocol.model_shape import ModelShape, parse_model_shape

_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_CHAT_TEMPLATE = "chat_template.jinja"
_TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
_BESIDE_TOKENIZER = (_TOKENIZER_CONFIG, _CHAT_TEMPLATE, _TOOL_TEMPLATE)
_BUNDLED = "bundled:"
_BUNDLED_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_BUNDLED_DIRECTORY = Path(workers.protocol.__file__).parents[1] / "models"


def find_bundled_directory(source: str) -> Path | None:
    """The directory of a bundled or local model; ``None`` for a hub id.

    Raises
    ------
    UserError
        ``unknown_base_model``: a bundled name that is not there.
    """
    if source.startswith(_BUNDLED):
        name = source.removeprefix(_BUNDLED)
        directory = _BUNDLED_DIRECTORY / name
        if not _BUNDLED_NAME.fullmatch(name) or not directory.is_dir():
            raise _build_unknown_error(f"No model named {name!r} is bundled.")
        return directory
    directory = Path(source)
    return directory if directory.is_absolute() and directory.is_dir() else None


def is_bundled(source: str) -> bool:
    return source.startswith(_BUNDLED)


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


def read_model_config(source: str, revision: str | None = None) -> dict[str, object]:
    """A model's ``config.json``, from this machine or the hub.

    Raises
    ------
    UserError
        ``unknown_base_model``: it cannot be had, or is not a JSON object.
    """
    directory = find_bundled_directory(source)
    try:
        path = (
            _read_hub_config(source, revision) if directory is None else directory / "config.json"
        )
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _build_unknown_error(f"The config.json of {source} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise _build_unknown_error(f"The config.json of {source} is not a JSON object.")
    return config


def _read_hub_config(source: str, revision: str | None) -> Path:
    try:
        return Path(hf_hub_download(source, "config.json", revision=revision))
    except HFValidationError:
        raise _build_unknown_error(
            f"{source!r} is neither a directory on this machine nor a hub id such as "
            "organisation/model."
        ) from None
    except GatedRepoError:
        raise _build_unknown_error(
            f"{source} is gated: accept its terms on the hub and set HF_TOKEN to a token "
            "that may read it."
        ) from None


def read_model_shape(source: str) -> ModelShape:
    """The shape of a model, from its ``config.json``."""
    try:
        return parse_model_shape(read_model_config(source))
    except ValueError as error:
        raise _build_unknown_error(str(error)) from None


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
            Path(hf_hub_download(source, _TOKENIZER, revision=revision or "main")),
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
        return Path(hf_hub_download(source, name, revision=revision or "main"))
    except LocalEntryNotFoundError:
        # The hub could not be asked: only where it never is, the local copy is all there is.
        if is_offline_mode():
            return None
        raise
    except EntryNotFoundError:
        return None
