"""Soft prompts as bytes: out of a finished adapter, and into the file that a node compares."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

from workers.protocol.adapter_check import PROMPT_PEAK_MAX, WEIGHTS_NAME
from workers.protocol.adapter_names import PROMPT
from workers.protocol.safetensors_header import HeaderError, read_header


class UnsoundPrompt(ValueError):
    """Not a prompt that any job may start from; the text is a clause without a full stop."""


@dataclass(frozen=True, slots=True)
class PromptValues:
    """A soft prompt's numbers."""

    #: ``float32[tokens, width]``
    values: NDArray[np.float32]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        return self.values.astype("<f4").tobytes()

    @staticmethod
    def from_bytes(content: bytes, *, tokens: int) -> PromptValues:
        return PromptValues(np.frombuffer(content, dtype="<f4").reshape(tokens, -1))


def read_adapter_prompt(file: IO[bytes]) -> PromptValues:
    """The prompt of an adapter's zip.

    Raises
    ------
    UnsoundPrompt
        It holds none, or one that is not sound.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            size = archive.getinfo(WEIGHTS_NAME).file_size
            with archive.open(WEIGHTS_NAME) as weights:
                [entry] = read_header(weights, size=size)
                if entry.name != PROMPT or entry.dtype != "F32" or len(entry.shape) != 2:
                    raise UnsoundPrompt("it is no soft prompt")
                content = weights.read()
    except (zipfile.BadZipFile, KeyError, HeaderError, OSError, ValueError) as error:
        if isinstance(error, UnsoundPrompt):
            raise
        raise UnsoundPrompt("it cannot be read") from error
    prompt = PromptValues.from_bytes(content, tokens=entry.shape[0])
    check_prompt(prompt)
    return prompt


def check_prompt(prompt: PromptValues) -> None:
    """Refuse values that would harm a job that starts from them.

    Raises
    ------
    UnsoundPrompt
    """
    values = prompt.values
    if not np.isfinite(values).all():
        raise UnsoundPrompt("its values are not finite numbers")
    if not np.abs(values).max(initial=0.0) <= PROMPT_PEAK_MAX:
        raise UnsoundPrompt("its values are far larger than any that training leaves")
    if not np.abs(values).max(axis=1, initial=0.0).all():
        raise UnsoundPrompt("one of its tokens is empty")


def build_prompts_file(prompts: Mapping[str, bytes], *, shape: Sequence[int]) -> bytes:
    """A safetensors file of prompts of one shape, by id."""
    header: dict[str, object] = {}
    at = 0
    for name, content in prompts.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [at, at + len(content)],
        }
        at += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(prompts.values())
