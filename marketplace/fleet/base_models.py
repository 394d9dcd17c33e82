"""Reading a zone's base model as data: its configuration and its tokenizer.

The market never loads weights. A source is ``bundled:<name>`` (a directory shipped with the
workers), a directory on this machine, or a Hugging Face hub id.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

import workers.protocol
from marketplace.common.errors import UserError
from marketplace.fleet.memory import ModelShape, shape_from_config

_BUNDLED = "bundled:"
_BUNDLED_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_BUNDLED_DIRECTORY = Path(workers.protocol.__file__).parents[1] / "models"


def bundled_directory(source: str) -> Path | None:
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
            raise UserError(
                "unknown_base_model", f"No model named {name!r} is bundled.", param="base_model"
            )
        return directory
    directory = Path(source)
    return directory if directory.is_absolute() and directory.is_dir() else None


def model_shape_read(source: str) -> ModelShape:
    """The shape of a model on this machine, from its ``config.json``."""
    directory = bundled_directory(source)
    path = None if directory is None else directory / "config.json"
    if path is None or not path.is_file():
        raise UserError(
            "unknown_base_model",
            f"{source} has no config.json on this machine; pass the model's shape.",
            param="base_model",
        )
    try:
        return shape_from_config(json.loads(path.read_text()))
    except ValueError as error:
        raise UserError("unknown_base_model", str(error), param="base_model") from None


@lru_cache(maxsize=8)
def tokenizer(source: str, revision: str | None = None) -> Tokenizer:
    """The tokenizer of a source: a directory with ``tokenizer.json``, that file, or a hub id.

    Raises
    ------
    UserError
        ``unknown_tokenizer``: it cannot be read.
    """
    path = Path(source) if source.endswith("tokenizer.json") else None
    if path is None:
        directory = bundled_directory(source)
        path = None if directory is None else directory / "tokenizer.json"
    try:
        if path is not None:
            return Tokenizer.from_file(str(path))
        return Tokenizer.from_pretrained(source, revision=revision or "main")
    # The library raises bare ``Exception`` for whatever is wrong with the file.
    except Exception as error:
        raise UserError(
            "unknown_tokenizer",
            f"The tokenizer of {source} cannot be read: {error}",
            param="base_model",
        ) from error
