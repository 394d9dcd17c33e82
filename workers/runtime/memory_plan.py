"""What fits beside a resident base: ``r_b + sum r_i <= C_km``.

The constraint is (4g) of the auction's paper. Its sums are those by which the market sells
(``workers.protocol.memory``). What real packs take beyond them on this node makes its packs
smaller; it refuses no job that was sold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from workers.protocol.job_bytes import JobNeed
from workers.protocol.memory import (
    ANSWER_ADAPTERS_SHARE,
    GB,
    USABLE_SHARE,
    PackSizing,
    pack_bytes,
    sum_total_gb,
)
from workers.protocol.model_shape import BasePart, ModelShape
from workers.protocol.part_memory import count_pack_tokens, fit_pack
from workers.protocol.pass_bytes import DeviceProfile
from workers.training.faults import SystemFault


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All sizes in GB (10^9 bytes)."""

    shape: ModelShape
    profile: DeviceProfile
    base_gb: float
    limit_gb: float
    #: By how much packs have taken more memory than was predicted.
    unforeseen_gb: float = 0.0
    #: Of the host's memory, what packs that spill may use.
    host_gb: float = 0.0
    #: Of a group of devices, each of which may hold an equal part of the limit.
    parts: tuple[BasePart, ...] = ()

    @property
    def usual_tokens(self) -> int:
        """Of a pack where memory leaves enough."""
        return count_pack_tokens(self.shape, self.profile, max(1, len(self.parts)))

    @property
    def answer_adapters_gb(self) -> float:
        """What adapters that answer questions may take of what packs have."""
        return ANSWER_ADAPTERS_SHARE * max(0.0, self.limit_gb - self.base_gb)

    def predict_pack_gb(self, pack: PackSizing, needs: Sequence[JobNeed]) -> float:
        """A pack with its logits, with these jobs on the base."""
        return pack_bytes(self.shape, self.profile, pack, needs=needs) / GB

    def grown(self, *, gb: float, pack: PackSizing, needs: Sequence[JobNeed]) -> MemoryPlan:
        """The plan after a pack took ``gb``.

        What was not predicted is set aside from then on: kernels' workspaces, the allocator's
        rounding, tensors of a model that the sums do not know.
        """
        more = gb - self.predict_pack_gb(pack, needs)
        return replace(self, unforeseen_gb=max(self.unforeseen_gb, more))


def fit(
    plan: MemoryPlan,
    *,
    needs: Sequence[JobNeed],
    others_gb: float,
    longest_tokens: int,
) -> PackSizing:
    """The largest pack with which these jobs fit, recomputing only when it must.

    Parameters
    ----------
    others_gb : float
        What other bases and their jobs take of the node.
    longest_tokens : int
        The longest example of any job; a pack must hold at least it.

    Raises
    ------
    SystemFault
        When the jobs do not fit; the numbers say by how much.
    """
    base_gb, layers = plan.base_gb + others_gb, plan.shape.layers
    parts = plan.parts or (BasePart(layers, plan.base_gb),)
    found = fit_pack(
        plan.shape,
        plan.profile,
        # what others have is in parts as this base is
        parts=[
            replace(part, base_gb=part.base_gb + others_gb * part.blocks / layers) for part in parts
        ],
        limit_gb=plan.limit_gb / len(parts),
        needs=needs,
        longest_tokens=longest_tokens,
        unforeseen_gb=plan.unforeseen_gb,
        host_gb=plan.host_gb,
    )
    if found is not None:
        return found
    if plan.parts:
        raise SystemFault(
            f"This job does not fit: one of the node's {len(plan.parts)} devices, which may use "
            f"{plan.limit_gb / len(plan.parts):.3f} GB each, has no room for its part of it with "
            f"a longest row of {longest_tokens} tokens. Lower rank or sequence length, or use a "
            "node with more memory."
        )
    least = PackSizing(longest_tokens, recompute=True)
    need = sum_total_gb(plan.shape, plan.profile, base_gb=base_gb, pack=least, needs=needs)
    raise SystemFault(
        f"This job does not fit: base and jobs need {need:.3f} GB with its longest row of "
        f"{longest_tokens} tokens, and the node may use {plan.limit_gb:.3f} GB. Lower rank or "
        "sequence length, or use a node with more memory."
    )


def find_limit_gb(devices: Sequence[torch.device]) -> float:
    """Memory that a plan may use of some devices, as much of each.

    A machine's own memory is one, however often its CPU is named.
    """
    share = min(find_device_limit_gb(device) for device in devices)
    return share * (1 if devices[0].type == "cpu" else len(devices))


def find_device_limit_gb(device: torch.device) -> float:
    """Memory the plan may use by default: most of what there is, and not what others have.

    Call before anything is on the device.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return min(USABLE_SHARE["cuda"] * total, free) / GB
    return USABLE_SHARE["cpu"] * _find_host_bytes() / GB


def find_host_gb() -> float:
    """The host's memory that packs of one GPU may spill into: half of its part of all GPUs'."""
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return _find_host_bytes() / (2 * max(1, gpus)) / GB


def _find_host_bytes() -> int:
    return min([psutil.virtual_memory().total, *_list_cgroup_limits()])


def _list_cgroup_limits() -> list[int]:
    limits: list[int] = []
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(name).read_text()))
        except (OSError, ValueError):
            continue
    return limits
