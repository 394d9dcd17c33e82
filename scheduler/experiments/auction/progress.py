"""What has been run so far, kept in a CSV file so that a killed run goes on."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

_HEAD = ("key", "label", "result")


class Progress:
    """Results by key, each on disk as soon as it is there.

    Parameters
    ----------
    path : Path
        Made when missing. A last line cut off by a kill is dropped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] = {}
        if path.exists():
            self._read()
        else:
            self._append(_HEAD)

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: str) -> Any:
        """Give a result, ``None`` where there is none yet."""
        return self._found.get(key)

    def put(self, key: str, label: str, result: Any) -> None:
        """Write a result down."""
        self._append((key, label, json.dumps(result)))
        # As a later run will read it.
        self._found[key] = json.loads(json.dumps(result))

    def _append(self, row: tuple[str, ...]) -> None:
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow(row)

    def _read(self) -> None:
        text = self._path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if len(whole) < len(text):
            self._path.write_text(whole, encoding="utf-8")
        if not whole:
            self._append(_HEAD)
        for row in csv.reader(whole.splitlines()[1:]):
            self._found[row[0]] = json.loads(row[2])
