"""What an export costs: the zone's asks, for the seconds that it takes a node."""

from __future__ import annotations

import math
from statistics import median

from marketplace.exports.models import ExportForm
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import list_online_nodes

#: Seconds of a node for each GB of the base model: read, merged, written and sent.
SECONDS_PER_GB = {ExportForm.MERGED: 8.0, ExportForm.GGUF_F16: 8.0, ExportForm.GGUF_Q8_0: 12.0}
#: Seconds of any export, however small the model.
SECONDS_LEAST = 10.0


def estimate_seconds(zone: Zone, form: ExportForm) -> float:
    return SECONDS_LEAST + SECONDS_PER_GB[form] * zone.base_memory_gb


def compute_price(zone: Zone, form: ExportForm) -> int | None:
    """Micro-dollars of one export; ``None``: no node is on sale. Half of the nodes ask less."""
    asks = [node.ask_micros / zone.slot_s for node in list_online_nodes(zone)]
    if not asks:
        return None
    return max(1, math.ceil(median(asks) * estimate_seconds(zone, form)))
