"""Archives of adapters, read as a stranger's: what is wrong with one is never an error here."""

from __future__ import annotations

import shlex
import zipfile
from contextlib import suppress
from pathlib import Path

_MEMBER_BYTES_MAX = 100_000


def is_adapter(path: Path) -> bool:
    """Whether a file is an adapter's archive, which says so by its configuration."""
    # A pipe would never end.
    return path.is_file() and _read_member(path, "adapter_config.json") is not None


def read_vllm_line(adapter: Path, job_id: str) -> str | None:
    """The command that serves an adapter with vLLM, once it is unpacked into ``job_id``.

    It stands in the adapter's card. ``None`` where vLLM does not serve it.
    """
    card = (_read_member(adapter, "README.md") or b"").decode(errors="replace")
    for line in map(str.strip, card.splitlines()):
        if line.startswith("vllm serve "):
            with suppress(ValueError):
                # Its last word says which folder is served; no word of it is a second command.
                return shlex.join([*shlex.split(line)[:-1], f"{job_id}={job_id}"])
    return None


def _read_member(path: Path, name: str) -> bytes | None:
    """Where a file of an archive begins; ``None`` where there is no such file to be read."""
    # Each way of packing has errors of its own, and ``zipfile`` others for locked or unknown ones.
    with suppress(Exception), zipfile.ZipFile(path) as archive, archive.open(name) as file:
        return file.read(_MEMBER_BYTES_MAX)
    return None
