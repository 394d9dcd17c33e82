"""How far a machine is that joins, as the page of the join command asks for it."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.fleet.join_progress import list_joining_machines
from marketplace.fleet.models import JoinToken
from marketplace.fleet.selectors import get_own_join_token
from marketplace.web.views.requests import PageRequest, owner_page


@owner_page
@require_GET
def show_joining(request: PageRequest, token_id: str) -> HttpResponse:
    """The steps alone, which the page of the join command asks for again and again."""
    token = get_own_join_token(request.organisation, token_id)
    return render(request, "console/joining.html", load_joining(token))


def load_joining(token: JoinToken) -> dict[str, Any]:
    """What ``console/join_steps.html`` shows of a token."""
    machines = list_joining_machines(token)
    on_sale = sum(machine.is_on_sale for machine in machines)
    wanted = token.uses_left + sum(machine.is_listed for machine in machines)
    return {"token": token, "machines": machines, "on_sale": on_sale, "wanted": wanted}
