"""Reading an upload in a process of its own, with an end to its time and memory."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from marketplace.common.errors import MarketFault, UserError
from marketplace.fleet.text_encoder import TokenizerFiles
from marketplace.jobs.dataset_reader import Reading
from marketplace.jobs.reading_child import OUT_OF_MEMORY

#: For each ``PIECE_BYTES`` of a file, which take about a minute.
PIECE_BYTES = 64 * 1024**2
CPU_S = 240
WALL_S = 600
MEMORY_BYTES = 4 * 1024**3
_ROOT = Path(__file__).parents[2]
#: What the process needs of our environment, which holds the market's secrets.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class FileToRead:
    path: Path
    #: Where the file is written in the shape that training reads, if it has another.
    output_path: Path
    #: Where its stretches of tokens are written, ``TokenRuns`` packed.
    runs_path: Path
    name: str
    #: Without one no tokens are counted.
    tokenizer: TokenizerFiles | None
    #: Most tokens of a row that is not cut.
    max_tokens: int | None
    leaves_out_long: bool = False
    #: The file's column by the name that training knows.
    columns: dict[str, str] = field(default_factory=dict)


def build_request(file: FileToRead) -> dict[str, Any]:
    """What ``reading_child.read_file`` is asked."""
    paths = {} if file.tokenizer is None else asdict(file.tokenizer)
    return {
        "path": str(file.path),
        "output_path": str(file.output_path),
        "runs_path": str(file.runs_path),
        "name": file.name,
        "size": file.path.stat().st_size,
        "tokenizer": {name: path and str(path) for name, path in paths.items()} or None,
        "max_tokens": file.max_tokens,
        "leaves_out_long": file.leaves_out_long,
        "columns": file.columns,
    }


def read_in_process(
    file: FileToRead,
    *,
    on_progress: Callable[[int, float], None],
    cpu_s: int | None = None,
    wall_s: float | None = None,
) -> tuple[Reading, bool]:
    """What a file holds, and whether it was rewritten to ``output_path``.

    Parameters
    ----------
    on_progress
        Called now and then with the rows read so far and the share of the file.
    cpu_s, wall_s
        Seconds that it may take; as many as its size allows unless given.

    Raises
    ------
    UserError
        ``dataset_too_complex``: the file takes more time or memory than any of its size should. And
        everything else that refuses the file as a whole.
    MarketFault
        The reader failed by itself.
    """
    pieces = max(1, math.ceil(file.path.stat().st_size / PIECE_BYTES))
    cpu_s = CPU_S * pieces if cpu_s is None else cpu_s
    asked = {**build_request(file), "cpu_s": cpu_s, "memory_bytes": MEMORY_BYTES}
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    process = subprocess.Popen(
        (sys.executable, "-m", "marketplace.jobs.reading_child"),
        cwd=_ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    alarm = threading.Timer(WALL_S * pieces if wall_s is None else wall_s, process.kill)
    alarm.start()
    try:
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            # One that is stopped already reads nothing; how it ended says so below.
            with suppress(BrokenPipeError):
                json.dump(asked, process.stdin)
                process.stdin.close()
            for line in process.stdout:
                said = json.loads(line)
                if "reading" in said:
                    return Reading(**said["reading"]), said["is_rewritten"]
                if "refusal" in said:
                    raise UserError(**said["refusal"])
                on_progress(said["rows"], said["share"])
    finally:
        alarm.cancel()
        process.kill()
    if process.returncode >= 0 and process.returncode != OUT_OF_MEMORY:
        raise MarketFault(f"the reader of {file.path} ended with {process.returncode}")
    raise UserError(
        "dataset_too_complex",
        "The file could not be read within the time and memory for a file of its size. Split it, "
        "or leave out what is not trained on.",
        param="file",
    )
