"""Webhooks: which events go to an organisation's own systems, and what was sent."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.web.forms import WebhookForm
from marketplace.web.views.requests import PageRequest, page
from marketplace.webhooks.models import MessageForm, WebhookEndpoint
from marketplace.webhooks.services import (
    create_endpoint,
    enable_endpoint,
    find_endpoint,
    replay_message,
    rotate_secret,
    send_test,
)

#: Deliveries on a webhook's page.
DELIVERIES_SHOWN = 50


@sensitive_variables("secret")
@page
@require_http_methods(["GET", "POST"])
def show_webhooks(request: PageRequest) -> HttpResponse:
    form = WebhookForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            endpoint, secret = create_endpoint(
                organisation=request.organisation,
                created_by=request.user,
                url=form.cleaned_data["url"],
                form=MessageForm(form.cleaned_data["form"] or MessageForm.STANDARD),
                events=form.cleaned_data["events"],
                now=clock.now(),
            )
        except UserError as error:
            form.add_error(error.param if error.param in form.fields else None, error.message)
        else:
            if endpoint.form != MessageForm.STANDARD:
                # A channel checks no signature.
                return redirect("webhook_detail", endpoint.pk)
            return _show(request, endpoint, secret=secret)
    endpoints = WebhookEndpoint.objects.filter(organisation=request.organisation).order_by("pk")
    return render(request, "web/webhooks.html", {"form": form, "endpoints": endpoints})


@page
@require_GET
def show_webhook(request: PageRequest, webhook_id: str) -> HttpResponse:
    return _show(request, find_endpoint(request.organisation, webhook_id))


@sensitive_variables("secret")
@page
@require_POST
def change_webhook(request: PageRequest, webhook_id: str, action: str) -> HttpResponse:
    endpoint = find_endpoint(request.organisation, webhook_id)
    if action == "rotate":
        secret = rotate_secret(endpoint=endpoint, now=clock.now())
        return _show(request, find_endpoint(request.organisation, webhook_id), secret=secret)
    if action == "delete":
        endpoint.delete()
        messages.success(request, "The webhook is deleted; nothing more is sent to it.")
        return redirect("webhook_list")
    if action == "enable":
        enable_endpoint(endpoint=endpoint)
        messages.success(request, "The webhook is sent to again.")
    elif action == "test":
        send_test(endpoint=endpoint, now=clock.now())
        messages.success(request, "A test is on its way.")
    else:
        raise NotFound("not_found", "There is nothing at this address.")
    return redirect("webhook_detail", webhook_id)


@page
@require_POST
def replay_delivery(request: PageRequest, webhook_id: str, delivery_id: str) -> HttpResponse:
    endpoint = find_endpoint(request.organisation, webhook_id)
    replay_message(endpoint=endpoint, message_id=delivery_id, now=clock.now())
    messages.success(request, "The message is sent again.")
    return redirect("webhook_detail", webhook_id)


def _show(request: PageRequest, endpoint: WebhookEndpoint, *, secret: str = "") -> HttpResponse:
    # A secret is shown in the answer to the POST itself: it is in no address and no session.
    deliveries = endpoint.deliveries.order_by("-pk")[:DELIVERIES_SHOWN]
    context = {"endpoint": endpoint, "deliveries": deliveries, "secret": secret}
    return render(request, "web/webhook.html", context)
