"""A gang's members as processes of this machine, one for each further device.

A member loads the same base and computes the parts it is sent until its pipe is closed. On CPUs
several processes stand for several devices.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch

from workers.protocol.job_spec import BaseModelRef
from workers.runtime.resident import load_resident
from workers.training.gang import GangLost, GangPart, PartGradient, compute_part

log = logging.getLogger(__name__)

#: A part takes seconds at most; a member that says nothing for so long is lost.
SILENT_S = 60.0
#: Seconds a member has to end by itself.
END_WITHIN_S = 5.0
_READY = "ready"


class ProcessGang:
    """Members that load while the trainer works alone, and then share its batches.

    Once one is lost all are ended: the trainer goes on alone.

    Parameters
    ----------
    ref : BaseModelRef
        The base that they load.
    devices : sequence of str
        One for each member, such as ``cuda:1``.
    limit_gb : float
        As in ``load_resident``.
    pad_to : int
        As the trainer's.
    reproducible : bool
        As in ``NodeRuntime``.
    """

    def __init__(
        self,
        ref: BaseModelRef,
        *,
        devices: Sequence[str],
        limit_gb: float,
        pad_to: int = 1,
        reproducible: bool = False,
    ) -> None:
        context = get_context("spawn")
        threads = 1 if reproducible else max(1, (os.cpu_count() or 1) // (len(devices) + 1))
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._loading: set[int] = set(range(len(devices)))
        for device in devices:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve_parts,
                args=(theirs, ref, device, limit_gb, pad_to, reproducible, threads),
                name=f"gang member on {device}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    @property
    def members(self) -> int:
        """How many compute now: none until all have the base loaded, or once one is lost."""
        for place in list(self._loading):
            try:
                if self._pipes[place].poll() and self._pipes[place].recv() == _READY:
                    self._loading.discard(place)
            except (EOFError, OSError):
                log.warning("%s could not load the base", self._processes[place].name)
                self.close()
                return 0
        return 0 if self._loading else len(self._pipes)

    def begin(self, parts: Sequence[Sequence[GangPart]]) -> None:
        """Send every member its parts.

        Raises
        ------
        GangLost
        """
        for pipe, own in zip(self._pipes, parts, strict=True):
            try:
                pipe.send(list(own))
            except OSError as error:
                raise self._lose(error) from error

    def collect(self) -> list[list[PartGradient]]:
        """Wait for all members.

        Raises
        ------
        GangLost
            One of them ended, failed or was silent for ``SILENT_S``; the gang has no members any
            more.
        """
        found: list[list[PartGradient]] = []
        for pipe in self._pipes:
            try:
                if not pipe.poll(SILENT_S):
                    raise TimeoutError(f"a member was silent for {SILENT_S:g} s")
                answer = pipe.recv()
            except (EOFError, OSError) as error:
                raise self._lose(error) from error
            if isinstance(answer, str):
                raise self._lose(RuntimeError(answer))
            found.append(answer)
        return found

    def close(self) -> None:
        """End the members; twice is no error."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(END_WITHIN_S)
            if process.is_alive():
                process.terminate()
                process.join()
        self._pipes, self._processes, self._loading = [], [], set()

    def _lose(self, error: BaseException) -> GangLost:
        self.close()
        return GangLost(f"{type(error).__name__}: {error}")


def serve_parts(
    pipe: Connection,
    ref: BaseModelRef,
    device: str,
    limit_gb: float,
    pad_to: int,
    reproducible: bool,
    threads: int,
) -> None:
    """Be a member: compute parts until the pipe is closed."""
    if device == "cpu":
        torch.set_num_threads(threads)
    resident = load_resident(
        ref, device=torch.device(device), limit_gb=limit_gb, reproducible=reproducible
    )
    try:
        pipe.send(_READY)
        while True:
            parts: list[GangPart] = pipe.recv()
            try:
                pipe.send([compute_part(resident.model, part, pad_to=pad_to) for part in parts])
            # Whatever a part raises, the trainer computes it again and says what is wrong.
            except Exception as error:
                pipe.send(f"{type(error).__name__}: {error}")
    except (EOFError, OSError):
        # The trainer has ended.
        return
