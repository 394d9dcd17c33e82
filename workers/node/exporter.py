"""Making adapters' other forms, in a process of its own beside the slices.

An export is an extra: what goes wrong with one is reported or logged, and the node goes on.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from workers.models import find_bundled_path, is_bundled
from workers.node.blob_cache import BlobCache, DiskFullError
from workers.node.market_client import MarketClient, MarketError, Patience, ShuttingDownError
from workers.protocol.exports import (
    PATH_EXPORT_FILE,
    PATH_EXPORT_REFUSED,
    ExportRefusal,
    ExportSpec,
)
from workers.protocol.job_spec import BaseModelRef
from workers.protocol.reports import Fault
from workers.protocol.wire import ProtocolError, from_json

log = logging.getLogger(__name__)

#: As ``workers.exporting`` ends where the model or the adapter is unfit.
_EXIT_UNFIT = 3
_KNOWN_MAX = 1000
_LOOK_EVERY_S = 0.2
_PATIENCE = Patience(total_s=60.0)


class Exporter:
    """``take`` is called on the node's thread; the rest happens on one of its own."""

    def __init__(self, *, cache: BlobCache, client: MarketClient, work: Path) -> None:
        self._cache = cache
        self._client = client
        self._work = work / "exports"
        self._known: dict[str, None] = {}
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="export")

    def take(self, value: Any) -> None:
        """Make an export that is new and not over; one that is not understood is left out."""
        try:
            export = from_json(ExportSpec, value, ignores_unknown=True)
        except ProtocolError as error:
            log.warning("an export is not understood: %s", error)
            return
        if export.token in self._known or self._client.market_time() >= export.expires_at:
            return
        while len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[export.token] = None
        self._pool.submit(self._answer, export)

    def close(self) -> None:
        self._closing.set()
        self._pool.shutdown(cancel_futures=True)

    def _answer(self, export: ExportSpec) -> None:
        try:
            self._make(export)
        except ShuttingDownError:
            return
        except _UnfitError as error:
            self._refuse(export, str(error), Fault.USER)
        except (MarketError, DiskFullError, OSError) as error:
            self._refuse(export, str(error), Fault.SYSTEM)
        # Nothing of an export may end the node.
        except Exception:
            log.exception("an export failed")
            self._refuse(export, "The node failed on this export.", Fault.SYSTEM)
        finally:
            # The same export may be asked for again: by then another node has failed.
            self._known.pop(export.token, None)

    def _make(self, export: ExportSpec) -> None:
        base = find_base_directory(export.base_model)
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True)
        out = self._work / "export"
        try:
            with self._cache.opened(export.adapter) as adapter:
                self._run(export, base=base, adapter=adapter, out=out)
            path = PATH_EXPORT_FILE.format(token=export.token)
            self._client.upload(path, out, patience=_PATIENCE)
        finally:
            shutil.rmtree(self._work, ignore_errors=True)

    def _run(self, export: ExportSpec, *, base: Path, adapter: Path, out: Path) -> None:
        """The program in a process of its own, behind what trains here."""
        command = [sys.executable, "-m", "workers.exporting", "--base", str(base)]
        command += ["--adapter", str(adapter), "--form", export.form, "--out", str(out)]
        if nice := shutil.which("nice"):
            command = [nice, "-n", "10", *command]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            while not self._has_ended(process):
                is_late = self._client.market_time() >= export.expires_at
                if is_late or self._closing.is_set():
                    raise ShuttingDownError("The time of an export is over.")
        finally:
            if process.poll() is None:
                process.kill()
            _, said = process.communicate()
        last = said.strip().rpartition("\n")[2][:500]
        if process.returncode == _EXIT_UNFIT:
            raise _UnfitError(last)
        if process.returncode:
            raise OSError(f"The program ended with {process.returncode}: {last}")

    @staticmethod
    def _has_ended(process: subprocess.Popen[str]) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_EVERY_S)
        return process.returncode is not None

    def _refuse(self, export: ExportSpec, reason: str, fault: Fault) -> None:
        log.warning("an export is not made: %s", reason)
        with contextlib.suppress(MarketError):
            refusal = ExportRefusal(export.token, reason[:500], fault)
            self._client.send(PATH_EXPORT_REFUSED, refusal, patience=_PATIENCE)


class _UnfitError(Exception):
    """The model or the adapter cannot be had in the form."""


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
