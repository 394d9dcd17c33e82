"""The process that reads one upload: ``python -m marketplace.jobs.reading_child``.

A file from outside may take any time and memory to parse, so no process that does anything else
parses it. What to read comes as one JSON object on the standard input; what was found goes out as
JSON lines: progress, then the result.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from marketplace.common.errors import UserError
from marketplace.fleet.text_encoder import ModelTextEncoder, TokenizerFiles, load_text_encoder
from marketplace.jobs.dataset_reader import LONG_LINES_MAX, Reading, read_dataset
from marketplace.jobs.importing import (
    is_json_list,
    read_columns,
    read_keys,
    write_json_lines,
    write_named_table,
)
from marketplace.jobs.token_runs import TokenRuns

#: How the process ends when a file takes more memory than it may.
OUT_OF_MEMORY = 3
_HEAD_BYTES = 4096
_TABLE_ENDINGS = (".csv", ".tsv")
_PROGRESS_EVERY_S = 0.25


def main() -> None:
    # Windows has no such limits; there ``check_file`` reads what is the person's own.
    import resource

    asked = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (asked["cpu_s"], asked["cpu_s"]))
    resource.setrlimit(resource.RLIMIT_AS, (asked["memory_bytes"], asked["memory_bytes"]))
    try:
        reading, is_rewritten = read_file(asked)
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)
    except UserError as refusal:
        _say(refusal={"code": refusal.code, "message": refusal.message, "param": refusal.param})
    else:
        _say(reading=asdict(reading), is_rewritten=is_rewritten)


def read_file(asked: dict[str, Any]) -> tuple[Reading, bool]:
    """What a file holds, and whether it was rewritten to ``output_path`` to be read.

    Its stretches of tokens are written to ``runs_path``.

    Raises
    ------
    UserError
        ``invalid_dataset``, ``invalid_columns`` or ``unknown_tokenizer``.
    """
    path = Path(asked["path"])
    is_rewritten = _rewrite(path, Path(asked["output_path"]), columns=asked["columns"])
    path = Path(asked["output_path"]) if is_rewritten else path
    name = asked["name"]
    encoder = _load_encoder(asked["tokenizer"])
    with path.open("rb") as file:
        progress = _Progress(file, size=path.stat().st_size)
        reading, runs = read_dataset(
            file,
            name=name,
            encoder=encoder,
            max_tokens=asked["max_tokens"],
            on_rows=progress.tell,
        )
        if reading.long_rows and asked["leaves_out_long"] and reading.fatal is None:
            reading, runs = _read_without_long(file, reading, asked, name=name, encoder=encoder)
        file.seek(0)
        if reading.fatal is not None and asked["name"].lower().endswith(_TABLE_ENDINGS):
            reading.columns = read_columns(file)
        elif reading.fatal is not None or not reading.rows:
            reading.keys = read_keys(file)
    Path(asked["runs_path"]).write_bytes(runs.to_bytes())
    return reading, is_rewritten


def _rewrite(path: Path, output: Path, *, columns: dict[str, str]) -> bool:
    with path.open("rb") as file:
        is_list = is_json_list(file.read(_HEAD_BYTES))
        if not is_list and not columns:
            return False
        file.seek(0)
        with output.open("wb") as written:
            if is_list:
                write_json_lines(file, written)
            else:
                write_named_table(file, written, columns=columns)
    return True


def _read_without_long(
    file: IO[bytes],
    reading: Reading,
    asked: dict[str, Any],
    *,
    name: str,
    encoder: ModelTextEncoder | None,
) -> tuple[Reading, TokenRuns]:
    """The file as it is without the lines of its long rows, read once more."""
    if reading.long_rows > LONG_LINES_MAX:
        raise UserError(
            "invalid_dataset",
            f"More than {LONG_LINES_MAX:,} rows are too long to be left out one by one. Let them "
            "be cut, or split them in the file.",
            param="long_rows",
        )
    left_out = sorted(set(reading.long_lines))
    file.seek(0)
    progress = _Progress(file, size=asked["size"])
    reading, runs = read_dataset(
        file,
        name=name,
        encoder=encoder,
        skip_lines=frozenset(left_out),
        max_tokens=asked["max_tokens"],
        on_rows=progress.tell,
    )
    reading.left_out_lines = left_out
    return reading, runs


def _load_encoder(files: dict[str, Any] | None) -> ModelTextEncoder | None:
    if files is None:
        return None
    beside = {name: path and Path(path) for name, path in files.items() if name != "tokenizer"}
    return load_text_encoder(TokenizerFiles(Path(files["tokenizer"]), **beside))


class _Progress:
    """Says now and then how far the reading is."""

    def __init__(self, file: IO[bytes], *, size: int) -> None:
        self._file = file
        self._size = max(1, size)
        self._due_at = 0.0

    def tell(self, rows: int) -> None:
        if time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + _PROGRESS_EVERY_S
            _say(rows=rows, share=min(1.0, self._file.tell() / self._size))


def _say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.nice(5)
    main()
