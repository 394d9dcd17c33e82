"""Making adapters' other forms, in a process of its own beside the slices."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from workers.models import find_bundled_path, is_bundled
from workers.node.blob_cache import BlobCache
from workers.node.market_client import MarketClient, Patience, ShuttingDownError
from workers.protocol.errands import PATH_ERRAND_FILE, ErrandSpec
from workers.protocol.exports import ExportTask
from workers.protocol.job_spec import BaseModelRef
from workers.training.faults import UserFault

#: As ``workers.exporting`` ends where the model or the adapter is unfit.
_EXIT_UNFIT = 3
_LOOK_EVERY_S = 0.2
_PATIENCE = Patience(total_s=60.0)


class Exporter:
    """An ``ErrandHandler``; it sends the file itself."""

    task_type = ExportTask

    def __init__(self, *, cache: BlobCache, client: MarketClient, work: Path) -> None:
        self._cache = cache
        self._client = client
        self._work = work / "exports"

    def do(self, task: ExportTask, errand: ErrandSpec, *, is_over: Callable[[], bool]) -> None:
        base = find_base_directory(task.base_model)
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True)
        out = self._work / "export"
        try:
            with self._cache.opened(task.adapter) as adapter:
                command = ["--base", str(base), "--adapter", str(adapter), "--form", task.form]
                self._run([*command, "--out", str(out)], is_over)
            path = PATH_ERRAND_FILE.format(token=errand.token)
            self._client.upload(path, out, patience=_PATIENCE)
        finally:
            shutil.rmtree(self._work, ignore_errors=True)

    def _run(self, arguments: list[str], is_over: Callable[[], bool]) -> None:
        """The program in a process of its own, behind what trains here."""
        command = [sys.executable, "-m", "workers.exporting", *arguments]
        if nice := shutil.which("nice"):
            command = [nice, "-n", "10", *command]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            while not self._has_ended(process):
                if is_over():
                    raise ShuttingDownError("The time of an export is over.")
        finally:
            if process.poll() is None:
                process.kill()
            _, said = process.communicate()
        last = said.strip().rpartition("\n")[2][:500]
        if process.returncode == _EXIT_UNFIT:
            raise UserFault(last)
        if process.returncode:
            raise OSError(f"The program ended with {process.returncode}: {last}")

    @staticmethod
    def _has_ended(process: subprocess.Popen[str]) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_EVERY_S)
        return process.returncode is not None


def find_base_directory(ref: BaseModelRef) -> Path:
    """Where this machine has the files of a base model that it trains.

    Raises
    ------
    OSError
        It has none.
    """
    if is_bundled(ref.source):
        return find_bundled_path(ref.source)
    if Path(ref.source).is_dir():
        return Path(ref.source)
    try:
        found = snapshot_download(ref.source, revision=ref.revision, local_files_only=True)
    except LocalEntryNotFoundError:
        raise OSError(f"The files of {ref.source} are not on this machine.") from None
    return Path(found)
