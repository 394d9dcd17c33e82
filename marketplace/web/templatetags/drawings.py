"""Drawings made on the server: the ribbon, its small twin and the heat map."""

from datetime import datetime
from typing import Any

from django import template

from marketplace.web.presenters.utilisation import HeatNode, build_heat

register = template.Library()


@register.inclusion_tag("web/parts/ribbon.html")
def plan_ribbon(ribbon: Any) -> dict[str, Any]:
    return {"ribbon": ribbon}


@register.inclusion_tag("web/parts/mini_ribbon.html")
def mini_ribbon(ribbon: Any, css: str = "") -> dict[str, Any]:
    return {"ribbon": ribbon, "css": css}


@register.inclusion_tag("web/parts/heat_map.html")
def heat_map(heat: Any, idle: str = "") -> dict[str, Any]:
    return {"heat": heat, "idle": idle}


@register.inclusion_tag("web/parts/heat_map.html")
def sold_heat(heat: dict[str, Any], now: datetime) -> dict[str, Any]:
    """A provider's nodes; the fill is the share of compute sold."""
    book = heat["book"]
    facts = {
        node.pk: HeatNode(node.name, node.gpu_type_id, node.tier, node.compute_capacity)
        for node in heat["nodes"]
    }
    return {
        "heat": build_heat(
            rows=heat["rows"],
            facts=facts,
            first_slot_at=book.first_slot_at,
            slot_s=book.zone.slot_s,
            now=now,
            by="sold",
        )
    }
