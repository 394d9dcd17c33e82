"""What a new bid takes over from an earlier one, or from the address."""

from __future__ import annotations

from typing import Any

from marketplace.auction.selectors import get_bid
from marketplace.web.expert_form import read_expert_settings
from marketplace.web.forms import LORA, TRAINING
from marketplace.web.templatetags.finetender import usd_input
from marketplace.web.views.requests import PageRequest
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.wire import to_json


def read_earlier_terms(request: PageRequest) -> dict[str, Any]:
    """Terms of an earlier bid, or what the address names."""
    named = ("dataset", "validation", "zone", "name", "model", "prepare", "plan")
    asked = {name: request.GET[name] for name in named if name in request.GET}
    if "again" in request.GET:
        bid = get_bid(request.organisation, request.GET["again"])
        adapter, training = to_json(bid.terms.adapter), to_json(bid.terms.training)
        if bid.terms.validation or bid.terms.preparation:
            # Its 0 was not chosen: other rows were held out.
            training.pop("validation_share", None)
        settings = {
            name: value
            for group, names in (
                (adapter, (*LORA, "virtual_tokens", "init_text")),
                (training, (*TRAINING, "target_loss")),
            )
            for name in names
            if (value := group.get(name)) is not None
            and not {f"adapter.{name}", f"training.{name}"} & set(bid.resolved)
        }
        asked |= (
            settings
            | read_expert_settings(adapter, training, resolved=bid.resolved)
            | _read_initial_prompt(bid.terms.adapter)
            | {
                "dataset": bid.terms.dataset,
                "validation": bid.terms.validation or "",
                "zone": bid.zone.name,
                "name": bid.name,
                "price": "" if bid.asks_price else usd_input(bid.price_micros),
                "model": bid.continued_job_id or "",
                "verified_only": bid.terms.verified_only,
            }
        )
    if "deadline" in request.GET:
        asked["deadline"] = request.GET["deadline"]
    return asked


def _read_initial_prompt(adapter: AdapterSpec) -> dict[str, Any]:
    """Method and start of an earlier bid, as the form has them."""
    start = "text" if adapter.init_text else "random"
    return {
        "method": adapter.kind.value,
        "initial_prompt": "lookup" if adapter.looks_up else start,
    }
