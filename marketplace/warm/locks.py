"""The only row locks of this app. A probe is locked alone."""

from __future__ import annotations

from marketplace.fleet.models import Node
from marketplace.warm.models import Probe


def lock_probe(*, token: str, node: Node) -> Probe | None:
    """The probe that this node was asked for, if there is one."""
    probes = Probe.objects.select_for_update(of=("self",))
    return probes.filter(token=token, node=node).first()
