"""The two pages people see: their bank's confirmation, and a provider's onboarding."""

from __future__ import annotations

import secrets
from html import escape
from urllib.parse import parse_qs, urlencode

from marketplace.embedded.stripe_stand_in.books import Books
from marketplace.embedded.stripe_stand_in.faults import refuse_missing

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 32rem; margin: 12vh auto; padding: 0 1rem;
color: #1c2024; }} button {{ font: inherit; padding: .5rem 1.25rem; margin-right: .5rem; }}
</style></head><body><main><h1>{title}</h1>{text}
<form method="post">{buttons}</form></main></body></html>"""
_TEST_MONEY = "<p>Test money. No card is charged.</p>"


def build_confirm_page(books: Books, name: str, secret: str, body: str) -> tuple[str, str]:
    """The page, or where to go on once the card's owner has answered."""
    intent = books.get("payment_intent", name)
    if not secrets.compare_digest(secret, intent["client_secret"]):
        raise refuse_missing("payment_intent", name)
    answer = parse_qs(body).get("do", [""])[0]
    if answer:
        done = books.conclude_action(name, secret, is_confirmed=answer == "confirm")
        failed = done["status"] == "requires_payment_method"
        query = {
            "payment_intent": name,
            "redirect_status": "failed" if failed else "succeeded",
        }
        return "", f"{intent['_return_url']}?{urlencode(query)}"
    amount = f"${intent['amount'] / 100:,.2f}"
    text = f"<p>Do you want to pay {escape(amount)}?</p>{_TEST_MONEY}"
    buttons = (
        '<button name="do" value="confirm">Confirm</button>'
        '<button name="do" value="refuse">Refuse</button>'
    )
    return _PAGE.format(title="Your bank asks", text=text, buttons=buttons), ""


def build_onboarding_page(books: Books, name: str, secret: str, body: str) -> tuple[str, str]:
    """The page, or where to go on once the provider has said who it is."""
    link = books.get("_account_link", name)
    if not secrets.compare_digest(secret, link["secret"]):
        raise refuse_missing("account_link", name)
    answer = parse_qs(body).get("do", [""])[0]
    if answer == "finish":
        books.finish_onboarding(link["account"])
    if answer:
        return "", str(link["return_url"])
    text = "<p>Here Stripe asks who you are and which bank account is yours.</p>" + _TEST_MONEY
    buttons = (
        '<button name="do" value="finish">Finish with test details</button>'
        '<button name="do" value="later">Later</button>'
    )
    return _PAGE.format(title="Get paid", text=text, buttons=buttons), ""
