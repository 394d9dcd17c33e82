"""Reads training data as an upload is read, without a market: ``python -m ...jobs.check_file``.

Prints JSON lines: how far it is, and last what was found. Ends with 1 where the market would refuse
the file unless it is told what becomes of lines with faults and of long rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from marketplace.common.errors import UserError
from marketplace.fleet.base_models import BUNDLED, find_bundled_directory, find_tokenizer_files
from marketplace.jobs.reading_child import read_file


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m marketplace.jobs.check_file")
    parser.add_argument("file", type=Path)
    parser.add_argument("--base", required=True, help="hub id, folder, or a zone's base model")
    parser.add_argument("--longest", type=int, help="most tokens of a row that training reads")
    asked = parser.parse_args()
    try:
        found = check_file(asked.file, base=asked.base, longest=asked.longest)
    except (UserError, OSError) as refusal:
        found = {"fatal": str(refusal)}
    print(json.dumps(found))
    is_refused = found["fatal"] or found["faulty"] or found["long_rows"] or not found["rows"]
    return 1 if is_refused else 0


def check_file(path: Path, *, base: str, longest: int | None = None) -> dict[str, object]:
    """Read a file with a base model's tokenizer; what ``Reading`` says of it.

    Raises
    ------
    UserError
        ``invalid_dataset`` or ``unknown_tokenizer``.
    OSError
    """
    files = asdict(find_tokenizer_files(_find_source(base)))
    with tempfile.TemporaryDirectory() as folder:
        reading, _ = read_file(
            {
                "path": path,
                "name": path.name,
                "size": path.stat().st_size,
                "output_path": f"{folder}/rewritten",
                "runs_path": f"{folder}/runs",
                "columns": {},
                "tokenizer": files,
                "max_tokens": longest,
                "leaves_out_long": False,
            }
        )
    return asdict(reading)


def _find_source(base: str) -> str:
    """A base model as a person names it: a folder seen from here, or a bundled one by its name."""
    if Path(base).is_dir():
        return str(Path(base).resolve())
    bundled = BUNDLED + base
    with suppress(UserError):
        find_bundled_directory(bundled)
        return bundled
    return base


if __name__ == "__main__":
    sys.exit(main())
