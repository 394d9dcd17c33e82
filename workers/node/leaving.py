"""A node that leaves its market for good: nothing of the owners stays on its disk."""

from __future__ import annotations

import shutil
from contextlib import suppress

from workers.node.credentials import StateDir


def forget_owners(state: StateDir) -> None:
    """Delete rows, adapters and checkpoints, and say so; a start after a kill goes on with it.

    Nothing is lost by it: the market has what counts, and a node that joins again fetches it.
    """
    # Also on a full disk: deleting needs no room.
    with suppress(OSError):
        state.leaving.touch()
    folders = (state.work, state.cache, state.outbox)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    left = [str(folder) for folder in folders if folder.exists()]
    if left:
        print(
            f"This node has left, and not all files of owners can be deleted. Delete "
            f"{' and '.join(left)}.",
            flush=True,
        )
        return
    state.leaving.unlink(missing_ok=True)
    print(
        "This node has left: the rows, adapters and checkpoints of owners are deleted from "
        f"{state.path}. Its credentials stay, and so do base models.",
        flush=True,
    )
