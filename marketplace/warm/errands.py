"""Probes as errands."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max

from marketplace.fleet.models import Node
from marketplace.fleet.selectors import is_node_silent, list_trusted_nodes
from marketplace.jobs.errands import ErrandHandler, register_handler
from marketplace.jobs.models import Artifact, ErrandKind
from marketplace.warm.consents import may_use_donors
from marketplace.warm.donors import is_usable
from marketplace.warm.models import Donor, Probe
from marketplace.warm.probes import PROBE_S
from workers.protocol.probes import ProbeResult


class ProbeErrands(ErrandHandler[Probe]):
    kind = ErrandKind.PROBE
    model = Probe
    related = ("dataset__organisation",)
    result_type = ProbeResult
    attempts_max = 1

    def choose_node(self, errand: Probe, *, now: datetime) -> Node | None:
        """Choose a node that is there; the one asked longest ago first."""
        online = list_trusted_nodes(errand.zone, verified_only=errand.verified_only)
        nodes = [node for node in online if not is_node_silent(node, now)]
        latest = Probe.objects.filter(node__in=nodes).values("node").annotate(at=Max("asked_at"))
        asked = dict(latest.values_list("node", "at"))
        earliest = datetime.min.replace(tzinfo=now.tzinfo)
        return min(nodes, key=lambda node: (asked.get(node.pk, earliest), node.pk), default=None)

    def compute_patience(self, errand: Probe) -> timedelta:
        return timedelta(seconds=PROBE_S)

    def build_task(self, errand: Probe) -> Any:
        return errand.task

    def find_blob(self, errand: Probe, name: str) -> Artifact | None:
        """Find an adapter that is probed; one withdrawn since it was asked is not served."""
        if name not in errand.artifact_ids:
            return None
        donor = Donor.objects.select_related("artifact").filter(pk=name).first()
        dataset = errand.dataset
        allowed = donor is not None and is_usable(
            donor, organisation=dataset.organisation, uses_donors=may_use_donors(dataset)
        )
        return donor.artifact if donor is not None and allowed else None

    def accept(self, errand: Probe, found: ProbeResult, *, now: datetime) -> bool:
        by_name = {loss.name: loss.loss for loss in found.losses}
        errand.losses = [_check_loss(by_name.get(name)) for name in errand.artifact_ids]
        errand.base_loss, errand.seconds = _check_loss(found.base_loss), found.seconds
        return True


register_handler(ProbeErrands())


def _check_loss(loss: float | None) -> float | None:
    return loss if loss is not None and loss >= 0 else None
