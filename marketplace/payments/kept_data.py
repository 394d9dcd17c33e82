"""What this app keeps of an organisation: its money, which stays in the books, and its cards.

Invoices keep the name and address that they were issued to, as tax law asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject, User
from marketplace.accounts.own_data import write_rows
from marketplace.payments.freezes import list_freezes
from marketplace.payments.models import (
    PAYMENT_OVER,
    AccountKind,
    BillingDetails,
    CardPayment,
    Chargeback,
    FundsRequest,
    Invoice,
    LedgerAccount,
    Payout,
    Posting,
    SavedCard,
    WalletRules,
)
from marketplace.payments.top_ups import remove_card

_WORDS = {
    AccountKind.WALLET_AVAILABLE: "Its wallet is not empty.",
    AccountKind.WALLET_HELD: "Money is held for what it asked for.",
    AccountKind.EARNINGS_PENDING: "It is to be paid what it earned.",
    AccountKind.EARNINGS_PAYABLE: "It is to be paid what it earned.",
}


def _list_needs(organisation_id: str) -> Iterator[str]:
    accounts = LedgerAccount.objects.filter(organisation=organisation_id)
    for kind in accounts.exclude(balance_micros=0).order_by("kind").values_list("kind", flat=True):
        yield _WORDS[AccountKind(kind)]
    mine = {"organisation": organisation_id}
    if CardPayment.objects.filter(**mine).exclude(status__in=PAYMENT_OVER).exists():
        yield "A card payment is not over."
    if Payout.objects.filter(**mine, ended_at=None).exists():
        yield "A payout is on its way."
    if Chargeback.objects.filter(payment__organisation=organisation_id, closed_at=None).exists():
        yield "A card payment is contested."
    if list_freezes([organisation_id]):
        yield "It is frozen. Write to the operator of this market."


def _mark(organisation_id: str, *, asked_by: User | None, now: datetime) -> None:
    """Nothing fills up the wallet of an organisation that was closed."""
    _remove_means(organisation_id, now=now)


def _remove_means(organisation_id: str, *, now: datetime) -> None:
    """Delete what pays by itself, and the cards that could pay again."""
    mine = {"organisation": organisation_id}
    WalletRules.objects.filter(**mine).delete()
    for card in SavedCard.objects.filter(**mine, removed_at=None).select_related("organisation"):
        # The gateway forgets it too, through the outbox.
        remove_card(organisation=card.organisation, card_id=card.pk, now=now)


def _erase(organisation_id: str, *, now: datetime) -> None:
    mine = {"organisation": organisation_id}
    BillingDetails.objects.filter(**mine).delete()
    _remove_means(organisation_id, now=now)
    CardPayment.objects.filter(**mine).update(terms=None, card="", card_fingerprint="", failure="")
    FundsRequest.objects.filter(**mine, answered_at=None).delete()
    SavedCard.objects.filter(**mine).update(brand="", last4="")


def forget_card_terms(*, references: Iterable[str]) -> None:
    """Take out what bids were placed with, where a card pays them; call in a transaction."""
    CardPayment.objects.filter(hold__reference__in=list(references)).update(terms=None)


def _list_own(organisation_id: str) -> Iterable[tuple[str, Callable[[], Iterable[bytes]]]]:
    mine = {"organisation": organisation_id}
    postings = Posting.objects.filter(account__organisation=organisation_id)
    yield (
        "money.jsonl",
        write_rows(postings, "account__kind", "amount_micros", "entry__kind", "entry__reference"),
    )
    yield "invoices.jsonl", write_rows(Invoice.objects.filter(**mine), "number", "total_micros")
    cards = CardPayment.objects.filter(**mine)
    yield "card-payments.jsonl", write_rows(cards, "purpose", "amount_cents", "status", "card")


register_kept_data(
    KeptData(
        Subject.ORGANISATION,
        mark=_mark,
        list_needs=_list_needs,
        erase=_erase,
        list_own=_list_own,
    )
)
