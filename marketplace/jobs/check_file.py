"""Reads training data as an upload is read, without a market: ``python -m ...jobs.check_file``.

Prints JSON lines: how far it is, and last what was found. Ends with 1 where the market would refuse
the file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from marketplace.common.errors import UserError
from marketplace.fleet.base_models import find_tokenizer_files
from marketplace.jobs.reading_child import read_file


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m marketplace.jobs.check_file")
    parser.add_argument("file", type=Path)
    parser.add_argument("--base", required=True, help="folder, bundled model or hub id")
    parser.add_argument("--longest", type=int, help="most tokens of a row that training reads")
    asked = parser.parse_args()
    try:
        found = check_file(asked.file, base=asked.base, longest=asked.longest)
    except (UserError, OSError) as refusal:
        found = {"fatal": str(refusal)}
    print(json.dumps(found))
    is_usable = found.get("rows") and not found["faulty"] and not found["fatal"]
    return 0 if is_usable else 1


def check_file(path: Path, *, base: str, longest: int | None = None) -> dict[str, object]:
    """Read a file with a base model's tokenizer; what ``Reading`` says of it.

    Raises
    ------
    UserError
        ``invalid_dataset`` or ``unknown_tokenizer``.
    OSError
    """
    files = asdict(find_tokenizer_files(base))
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


if __name__ == "__main__":
    sys.exit(main())
