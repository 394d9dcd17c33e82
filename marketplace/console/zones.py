"""Zones as an operator runs them: what each is now, its settings, who changed them, and undo."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.db.models import Count, Q
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from marketplace.accounts.oversight import REASON_MAX, read_reason
from marketplace.auction.models import Bid, BidStatus, MarketHead
from marketplace.auction.selectors import list_zone_pricing, load_settings_start
from marketplace.common import clock
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.fleet.models import ABSENT, Node, NodeStatus, Zone, ZoneChange
from marketplace.fleet.policy_settings import (
    CHANGED,
    PARAMETERS,
    POLICY_PARAMETERS,
    Parameter,
    check_policy_settings,
    list_differences,
    set_policy_settings,
)
from marketplace.jobs.models import Job
from marketplace.web.views.requests import PageRequest, operator_page, show_refusal

CHANGES_SHOWN = 20
#: Nodes that the page names; the list of providers has all.
NODES_SHOWN = 50
#: How the form names and explains each setting.
LABELS = {
    "fee_per_unit": ("House fee", "dollars a million work units, on top of asks and prices"),
    "posts_rates": ("Post rates", "providers earn a rate posted each day instead of their asks"),
    "refusal_hints": ("Hints with refusals", "which price or deadline would have won"),
    "growth": ("Price growth", "how fast a cell's price rises with its use between two solves"),
    "beats_per_slot": ("Beats", "times a slot for new prices; as the zone was opened with"),
    "past_days": ("Days looked back", "whole past days that a forecast of bids is made from"),
    "futures": ("Futures", "days that a solve imagines"),
    "iterations": ("Iterations", "steps of a solve in each of them"),
    "most_tasks": ("Bids in a solve", "at most, over all imagined days"),
    "first_step": ("First step", "of a solve, as a share of the price scale"),
    "last_step": ("Last step", "of a solve, as a share of the price scale"),
    "reference_rate_micros": (
        "Reference rate",
        "micro-dollars a work unit; stands in for others' asks where a provider is alone",
    ),
    "ask_cap_micros": (
        "Highest ask paid",
        "micro-dollars a work unit, where there is no reference",
    ),
    "holding_limit": (
        "Limit on holdings",
        "while the zone is new, one organisation may hold a part of it only",
    ),
}
#: The form's parts, and whether one is folded away: what only an expert touches.
GROUPS = (
    (
        "What is paid",
        ("fee_per_unit", "posts_rates", "reference_rate_micros", "ask_cap_micros"),
        False,
    ),
    ("Who may bid", ("holding_limit", "refusal_hints"), False),
    ("How prices are solved", ("beats_per_slot", *POLICY_PARAMETERS), True),
)


@operator_page
@require_GET
def list_zones(request: PageRequest) -> HttpResponse:
    """All zones with what each has now; a few queries, however many there are."""
    pending = Bid.objects.filter(status=BidStatus.PENDING).values_list("zone")
    nodes = Node.objects.exclude(status__in=ABSENT).values_list("zone")
    context = {
        "zones": list_zone_pricing(),
        "waiting": dict(pending.annotate(Count("pk"))),
        "nodes": dict(nodes.annotate(Count("pk"))),
        "online": dict(nodes.annotate(online=Count("pk", filter=Q(status=NodeStatus.ONLINE)))),
        "active": dict(
            Job.objects.filter(status__in=Job.ACTIVE).values_list("zone").annotate(Count("pk"))
        ),
        "heads": MarketHead.objects.in_bulk(field_name="zone_id"),
    }
    return render(request, "console/zones.html", context)


@operator_page
@require_http_methods(["GET", "POST"])
def show_zone(request: PageRequest, zone_name: str) -> HttpResponse:
    """A zone with its settings; a form that is sent shows the difference before it is set."""
    zone = _find_zone(zone_name)
    given = request.POST if request.method == "POST" else None
    context: dict[str, Any] = {}
    try:
        wanted = zone.settings if given is None else _read_settings(given)
        if given is not None:
            context["differences"] = [
                (_label(name), was, will)
                for name, was, will in list_differences(zone.settings, wanted)
            ]
            # Fields that were changed after the difference was shown are shown first.
            if given.get("do") == "set" and given.get("shown") == _write_settings(wanted):
                return _set(request, zone, given, wanted)
    except UserError as error:
        wanted = zone.settings
        context["error"] = error.message
    context |= _load_zone(zone) | {
        "zone": zone,
        "groups": _build_fields(given, wanted),
        "seen": _write_settings(zone.settings),
        "shown": _write_settings(wanted),
        "reason": "" if given is None else given.get("reason", ""),
        "reason_max": REASON_MAX,
    }
    return render(request, "console/zone.html", context)


def _set(
    request: PageRequest, zone: Zone, given: QueryDict, wanted: Mapping[str, Any]
) -> HttpResponse:
    with show_refusal(request):
        reason = read_reason(given.get("reason", ""))
        expected = _parse_seen(given.get("seen", ""))
        set_policy_settings(
            zone=zone,
            settings=wanted,
            now=clock.now(),
            set_by=request.user,
            reason=reason,
            expected=expected,
        )
        said = "Set. The lane logs it before the next decision; the form says from when it holds."
        messages.success(request, said)
    return redirect("operator_zone", zone_name=zone.name)


@operator_page
@require_POST
def undo_change(request: PageRequest, zone_name: str, change_id: int) -> HttpResponse:
    """Set a zone's settings as they were before a change, if nobody changed them since."""
    zone = _find_zone(zone_name)
    change = ZoneChange.objects.filter(pk=change_id, zone=zone).first()
    if change is None:
        raise NotFound("unknown_change", "There is no such change.")
    with show_refusal(request):
        # A later change may have set the same once more.
        if ZoneChange.objects.filter(zone=zone, pk__gt=change.pk).exists():
            raise Conflict("settings_changed", CHANGED)
        set_policy_settings(
            zone=zone,
            settings=change.before,
            now=clock.now(),
            set_by=request.user,
            reason=read_reason(request.POST.get("reason", "") or f"Undo: {change.reason}"[:300]),
            expected=change.after,
        )
        messages.success(request, "The settings are again as they were before that change.")
    return redirect("operator_zone", zone_name=zone.name)


def _find_zone(name: str) -> Zone:
    zone = list_zone_pricing().filter(name=name.replace("\0", "")).first()
    if zone is None:
        raise NotFound("unknown_zone", "There is no such zone.")
    return zone


def _load_zone(zone: Zone) -> dict[str, Any]:
    nodes = Node.objects.filter(zone=zone).exclude(status__in=ABSENT)
    changes = list(
        ZoneChange.objects.filter(zone=zone)
        .select_related("set_by")
        .order_by("-pk")[:CHANGES_SHOWN]
    )
    return {
        "start": load_settings_start(zone, now=clock.now()),
        "head": MarketHead.objects.filter(zone=zone).first(),
        "nodes": nodes.select_related("provider__organisation").order_by("name")[:NODES_SHOWN],
        "pending": Bid.objects.filter(zone=zone, status=BidStatus.PENDING).count(),
        "active": Job.objects.filter(zone=zone, status__in=Job.ACTIVE).count(),
        "changes": [
            (
                change,
                [
                    (_label(name), was, will)
                    for name, was, will in list_differences(change.before, change.after)
                ],
                # Only where it still stands can it be taken back.
                change.after == zone.settings and place == 0,
            )
            for place, change in enumerate(changes)
        ],
    }


def _label(name: str) -> str:
    return LABELS.get(name, (name, ""))[0]


def _build_fields(given: QueryDict | None, wanted: Mapping[str, Any]) -> list[Any]:
    """Parts of the form, ``(title, is folded, fields)``.

    A field is ``(name, label, hint, limits, kind, value)``. What is set is never folded away.
    """
    parts: list[Any] = []
    for title, names, folds in GROUPS:
        values = {name: _show_value(given, wanted, name) for name in names}
        fields = [
            (
                name,
                *LABELS[name],
                "" if PARAMETERS[name].kind is bool else PARAMETERS[name].words,
                PARAMETERS[name].kind.__name__,
                values[name],
            )
            for name in names
        ]
        parts.append((title, folds and not any(values.values()), fields))
    return parts


def _show_value(given: QueryDict | None, wanted: Mapping[str, Any], name: str) -> str:
    if given is not None:
        return given.get(name, "")
    value = wanted.get(name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else f"{value:.12g}"


def _read_settings(given: QueryDict) -> dict[str, Any]:
    """The parameters of a form that was sent; an empty field is left as it is built.

    Raises
    ------
    UserError
        ``invalid_policy_setting``: a field is no number, or out of bounds.
    """
    texts = {name: given.get(name, "").strip() for name in PARAMETERS}
    read = {name: _read_value(name, PARAMETERS[name], text) for name, text in texts.items() if text}
    check_policy_settings(read)
    return read


def _read_value(name: str, parameter: Parameter, text: str) -> Any:
    try:
        if parameter.kind is bool:
            return {"true": True, "false": False}[text]
        return parameter.kind(text)
    except (KeyError, ValueError):
        raise UserError(
            "invalid_policy_setting", f"{_label(name)} is {parameter.words}.", param=name
        ) from None


def _write_settings(settings: Mapping[str, Any]) -> str:
    """Settings that a page shows, so that nothing else is overwritten or set."""
    return json.dumps(settings, sort_keys=True)


def _parse_seen(text: str) -> Mapping[str, Any]:
    """What ``_write_settings`` wrote; anything else is what no zone has."""
    try:
        return dict(json.loads(text))
    except (TypeError, ValueError):
        return {"": None}
