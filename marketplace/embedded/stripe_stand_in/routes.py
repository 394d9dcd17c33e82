"""Which call is which: Stripe's addresses, and the parameters that its client types know."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from stripe import params

from marketplace.embedded.stripe_stand_in.books import Books
from marketplace.embedded.stripe_stand_in.faults import refuse_missing, refuse_request
from marketplace.embedded.stripe_stand_in.store import Thing

#: What a call does: books, parts of its address, parameters, connected account.
Step = Callable[[Books, tuple[str, ...], Thing, str], Any]


def _retrieve(kind: str) -> Step:
    return lambda books, ids, _asked, _account: books.get(kind, ids[0])


def _list(kind: str, *filters: str) -> Step:
    def find(books: Books, _ids: tuple[str, ...], asked: Thing, account: str) -> Thing:
        wanted = {name: asked[name] for name in filters if name in asked}
        if kind in ("balance_transaction", "event", "payout"):
            wanted["_account"] = account
        found = books.find(kind, **wanted)
        since = int(asked.get("created", {}).get("gte", 0))
        found = [thing for thing in found if thing["created"] >= since]
        if "starting_after" in asked:
            ids = [thing["id"] for thing in found]
            if asked["starting_after"] not in ids:
                raise refuse_missing(kind, asked["starting_after"])
            found = found[ids.index(asked["starting_after"]) + 1 :]
        limit = max(1, min(100, int(asked.get("limit", 10))))
        return {
            "object": "list",
            "data": found[:limit],
            "has_more": len(found) > limit,
            "url": f"/v1/{kind}s",
        }

    return find


def _list_events(books: Books, ids: tuple[str, ...], asked: Thing, account: str) -> Thing:
    if "delivery_success" in asked:
        asked = asked | {"_is_delivered": asked["delivery_success"]}
    return _list("event", "_is_delivered")(books, ids, asked, account)


def _balance(books: Books, _ids: tuple[str, ...], _asked: Thing, account: str) -> Thing:
    def write(amount: int) -> list[Thing]:
        currency = books.find_currency(account)
        return [{"amount": amount, "currency": currency, "source_types": {}}]

    return {
        "object": "balance",
        "available": write(books.balance(account)),
        "pending": write(books.pending(account)),
        "livemode": False,
    }


_ID = r"([A-Za-z0-9_]+)"
#: Method, address, the client's type of the parameters, and what it does.
ROUTES: tuple[tuple[str, re.Pattern[str], Any, Step], ...] = tuple(
    (method, re.compile(f"/v1/{path.replace('ID', _ID)}"), known, step)
    for method, path, known, step in (
        (
            "POST",
            "customers",
            params.CustomerCreateParams,
            lambda b, i, a, _: b.create_customer(a),
        ),
        ("GET", "customers/ID", None, _retrieve("customer")),
        ("GET", "payment_methods/ID", None, _retrieve("payment_method")),
        (
            "POST",
            "payment_methods/ID/detach",
            params.PaymentMethodDetachParams,
            lambda b, i, a, _: b.detach_card(i[0]),
        ),
        (
            "POST",
            "payment_intents",
            params.PaymentIntentCreateParams,
            lambda b, i, a, _: b.create_intent(a),
        ),
        ("GET", "payment_intents", None, _list("payment_intent", "customer")),
        ("GET", "payment_intents/ID", None, _retrieve("payment_intent")),
        (
            "POST",
            "payment_intents/ID/confirm",
            params.PaymentIntentConfirmParams,
            lambda b, i, a, _: b.confirm_intent(i[0], a),
        ),
        (
            "POST",
            "payment_intents/ID/capture",
            params.PaymentIntentCaptureParams,
            lambda b, i, a, _: b.capture_intent(i[0], a),
        ),
        (
            "POST",
            "payment_intents/ID/cancel",
            params.PaymentIntentCancelParams,
            lambda b, i, a, _: b.cancel_intent(i[0]),
        ),
        ("GET", "charges/ID", None, _retrieve("charge")),
        (
            "POST",
            "refunds",
            params.RefundCreateParams,
            lambda b, i, a, _: b.create_refund(a),
        ),
        ("GET", "refunds", None, _list("refund", "payment_intent")),
        ("GET", "refunds/ID", None, _retrieve("refund")),
        (
            "GET",
            "radar/early_fraud_warnings/ID",
            None,
            _retrieve("radar.early_fraud_warning"),
        ),
        ("GET", "reviews/ID", None, _retrieve("review")),
        (
            "POST",
            "webhook_endpoints",
            params.WebhookEndpointCreateParams,
            lambda b, i, a, _: b.create_endpoint(a),
        ),
        ("GET", "webhook_endpoints", None, _list("webhook_endpoint")),
        ("DELETE", "webhook_endpoints/ID", None, lambda b, i, a, _: b.delete_endpoint(i[0])),
        ("GET", "account", None, lambda b, i, a, _: b.describe_own_account()),
        ("GET", "disputes", None, _list("dispute", "payment_intent")),
        ("GET", "disputes/ID", None, _retrieve("dispute")),
        (
            "POST",
            "accounts",
            params.AccountCreateParams,
            lambda b, i, a, _: b.create_account(a),
        ),
        ("GET", "accounts/ID", None, _retrieve("account")),
        (
            "POST",
            "account_links",
            params.AccountLinkCreateParams,
            lambda b, i, a, _: b.create_account_link(a),
        ),
        (
            "POST",
            "transfers",
            params.TransferCreateParams,
            lambda b, i, a, _: b.create_transfer(a),
        ),
        ("GET", "transfers", None, _list("transfer", "transfer_group", "destination")),
        ("GET", "transfers/ID", None, _retrieve("transfer")),
        (
            "POST",
            "transfers/ID/reversals",
            params.TransferCreateReversalParams,
            lambda b, i, a, _: b.create_reversal(i[0], a),
        ),
        (
            "POST",
            "payouts",
            params.PayoutCreateParams,
            lambda b, i, a, account: b.create_payout(a, account=account),
        ),
        ("GET", "payouts", None, _list("payout")),
        ("GET", "payouts/ID", None, _retrieve("payout")),
        (
            "POST",
            "tax/calculations",
            params.tax.CalculationCreateParams,
            lambda b, i, a, _: b.calculate_tax(a),
        ),
        (
            "POST",
            "tax/transactions/create_from_calculation",
            params.tax.TransactionCreateFromCalculationParams,
            lambda b, i, a, _: b.record_tax(a),
        ),
        ("GET", "events", params.EventListParams, _list_events),
        ("GET", "balance", None, _balance),
        ("GET", "balance_transactions", None, _list("balance_transaction", "type", "source")),
    )
)


def act(books: Books, method: str, path: str, asked: Thing, account: str) -> Thing:
    """Do what a call asks for; the objects that ``expand`` names stand whole in the answer."""
    for known_method, pattern, known, step in ROUTES:
        match = pattern.fullmatch(path)
        if match is None or method != known_method:
            continue
        unknown = set() if known is None else set(asked) - set(known.__annotations__)
        if unknown:
            name = min(unknown)
            raise refuse_request(
                "parameter_unknown", f"Received unknown parameter: {name}", param=name
            )
        answer = step(books, match.groups(), asked, account)
        return show(books, answer, asked.get("expand", []))
    raise refuse_request("url_invalid", f"Unrecognized request URL ({method}: {path}).", status=404)


def show(books: Books, thing: Any, expand: list[str]) -> Any:
    """An answer without what only the stand-in knows, and with what is to be expanded."""
    if not isinstance(thing, dict):
        return thing
    if thing.get("object") == "list":
        return {**thing, "data": [show(books, item, []) for item in thing["data"]]}
    shown = {name: value for name, value in thing.items() if not name.startswith("_")}
    if thing.get("object") == "balance_transaction":
        is_there = thing["available_on"] <= books.now()
        shown["status"] = "available" if is_there else "pending"
    for path in expand:
        name, _, rest = path.partition(".")
        part = shown.get(name)
        found = books.things.get(part) if isinstance(part, str) else None
        if found is not None:
            below = [other.partition(".")[2] for other in expand if other.startswith(f"{name}.")]
            shown[name] = show(books, found, [other for other in below if other])
        elif rest and isinstance(part, dict):
            shown[name] = show(books, part, [rest])
    return shown
