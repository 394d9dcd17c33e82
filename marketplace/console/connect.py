"""The operator's page *Connect Stripe*: key, account, endpoints, events, and a payment to try."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.payments.gateway_endpoints import create_endpoints
from marketplace.payments.gateway_setup import load_connection, try_test_payment
from marketplace.payments.stripe_client import GatewayFault
from marketplace.web.views.requests import PageRequest, operator_page


@operator_page
@require_GET
def show_connection(request: PageRequest) -> HttpResponse:
    return render(request, "console/stripe.html", {"connection": load_connection()})


@operator_page
@require_POST
def connect(request: PageRequest) -> HttpResponse:
    try:
        made = create_endpoints(created_by=request.user, now=clock.now())
    except (GatewayFault, UserError) as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"{len(made)} endpoints were made at the gateway.")
    return redirect("operator_stripe")


@operator_page
@require_POST
def try_payment(request: PageRequest) -> HttpResponse:
    try:
        gateway_id = try_test_payment(asked_by=request.user, now=clock.now())
    except (GatewayFault, UserError) as error:
        messages.error(request, str(error))
    else:
        messages.success(
            request, f"{gateway_id} paid $1.00 and got it back; its events arrive below."
        )
    return redirect("operator_stripe")
