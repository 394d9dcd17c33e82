"""``python -m tests.benchmarks.list_templates FOLDER``: what chat templates have a place for.

Each file ``*.jinja`` of the folder lays out twelve conversations; the table is Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.unit.workers.training.test_served_prompts import CONVERSATIONS, list_prompts
from workers.protocol.token_layout import TemplateError


def list_lines(folder: Path) -> Iterator[str]:
    """The table, a template a line."""
    yield "| Template | Conversations | Tools | Thoughts |"
    yield "|--|--|--|--|"
    for path in sorted(folder.glob("*.jinja")):
        laid_out: set[str] = set()
        for kind in CONVERSATIONS:
            try:
                prompts, served = list_prompts(path.read_text(), kind)
            except TemplateError:
                continue
            if prompts != served:
                raise AssertionError(f"{path.stem} is served otherwise than it is trained: {kind}")
            laid_out.add(kind)
        tools, thoughts = ("yes" if kind in laid_out else "no" for kind in ("tools", "thought"))
        yield f"| {path.stem} | {len(laid_out)} of {len(CONVERSATIONS)} | {tools} | {thoughts} |"


if __name__ == "__main__":
    print("\n".join(list_lines(Path(sys.argv[1]))))
