"""Whatever is asked of the ledger, in whatever order: the books balance and nobody owes.

Each example runs a random sequence of services, many of which must be refused, beside a
plain model of two wallets. After every step the database must say what the model says.
"""

from dataclasses import dataclass, field, replace

import pytest
from django.db import IntegrityError, connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marketplace.accounts.models import Organisation
from marketplace.common.errors import Conflict, NotFound, PaymentRequired, UserError
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import AccountKind, Hold
from marketplace.payments.selectors import get_earnings, get_house_balances, get_wallet
from marketplace.payments.services import (
    Share,
    distribute_charge,
    grant_money,
    refund_charge,
    release_hold,
)
from tests import builders
from tests.builders import NOW

OWNERS, HOLDS = 2, 4

Step = tuple[str, int, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["grant", "hold", "settle", "release", "refund", "distribute"]),
        st.integers(0, OWNERS - 1),
        st.integers(0, HOLDS - 1),
        st.integers(1, 12),
    ),
    min_size=4,
    max_size=24,
)


@dataclass(frozen=True)
class ModelHold:
    owner: int
    amount: int
    status: str = "held"
    charged: int = 0
    refunds: frozenset[int] = frozenset()
    distributed: bool = False


@dataclass
class Model:
    """The same rules in a few lines: what each step does, or that it is refused."""

    available: list[int] = field(default_factory=lambda: [0] * OWNERS)
    grants: dict[tuple[int, int], int] = field(default_factory=dict)
    holds: dict[int, ModelHold] = field(default_factory=dict)
    earned: int = 0

    def grant(self, owner: int, name: int, amount: int) -> bool:
        if (owner, name) in self.grants:
            return self.grants[owner, name] == amount
        self.grants[owner, name] = amount
        self.available[owner] += amount
        return True

    def hold(self, owner: int, name: int, amount: int) -> bool:
        if name in self.holds or amount > self.available[owner]:
            return False
        self.available[owner] -= amount
        self.holds[name] = ModelHold(owner, amount)
        return True

    def settle(self, _: int, name: int, amount: int) -> bool:
        hold = self.holds.get(name)
        if hold is None or hold.status == "released":
            return False
        if hold.status == "charged":
            return hold.charged == amount
        if amount > hold.amount:
            return False
        self.available[hold.owner] += hold.amount - amount
        self.holds[name] = replace(hold, status="charged", charged=amount)
        return True

    def release(self, _: int, name: int, __: int) -> bool:
        hold = self.holds.get(name)
        if hold is None or hold.status == "charged":
            return False
        if hold.status == "held":
            self.available[hold.owner] += hold.amount
            self.holds[name] = replace(hold, status="released")
        return True

    def refund(self, _: int, name: int, amount: int) -> bool:
        hold = self.holds.get(name)
        if hold is None or hold.status != "charged":
            return False
        if amount in hold.refunds:
            return True
        if sum(hold.refunds) + amount > hold.charged:
            return False
        self.available[hold.owner] += amount
        self.holds[name] = replace(hold, refunds=hold.refunds | {amount})
        return True

    def distribute(self, _: int, name: int, amount: int) -> bool:
        hold = self.holds.get(name)
        if hold is None or hold.status != "charged":
            return False
        if not hold.distributed:
            self.earned += amount
            self.holds[name] = replace(hold, distributed=True)
        return True

    def held(self, owner: int) -> int:
        return sum(h.amount for h in self.holds.values() if (h.owner, h.status) == (owner, "held"))


def check_books(sequence: list[Step]) -> None:
    model = Model()
    owners = [builders.organisation() for _ in range(OWNERS)]
    provider = builders.provider_organisation()
    operator = builders.operator()

    def run(action: str, owner: int, name: int, amount: int) -> None:
        reference = f"bid_{name}"
        if action == "grant":
            grant_money(
                organisation=owners[owner],
                amount_micros=amount,
                granted_by=operator,
                reference=f"{owner}-{name}",
                now=NOW,
            )
        elif action == "hold":
            builders.hold_funds(
                organisation=owners[owner], amount_micros=amount, reference=reference
            )
        elif action == "settle":
            builders.settle_hold(hold_reference=reference, charge_micros=amount)
        elif action == "release":
            release_hold(hold_reference=reference, now=NOW)
        elif action == "refund":
            refund_charge(
                hold_reference=reference, amount_micros=amount, reason=f"r{amount}", now=NOW
            )
        else:
            _pay(provider, amount, reference)

    for step in sequence:
        expected = getattr(model, step[0])(*step[1:])
        try:
            with transaction.atomic():
                run(*step)
            accepted = True
        except (Conflict, NotFound, PaymentRequired, UserError, IntegrityError):
            accepted = False
        assert accepted == expected, step
        for number, owner in enumerate(owners):
            found = get_wallet(organisation=owner)
            assert (found.available_micros, found.held_micros) == (
                model.available[number],
                model.held(number),
            ), step
        assert get_earnings(organisation=provider).pending_micros == model.earned
    check = check_ledger()
    assert check.balanced, check
    assert check.entries == _entries_of(model)
    granted = -get_house_balances()[AccountKind.GRANTS]
    assert granted == sum(model.grants.values())
    with connection.cursor() as cursor:
        # The triggers that wait for the commit speak up here.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def _pay(provider: Organisation, amount: int, reference: str) -> None:
    """Pay a provider; what the charge cannot pay for, the house adds."""
    hold = Hold.objects.filter(reference=reference).first()
    left = 0 if hold is None else hold.charged_micros - hold.refunded_micros
    split = builders.cost_split(Share(provider.pk, amount), borne=max(0, amount - left))
    distribute_charge(hold_reference=reference, split=split, now=NOW)


def _entries_of(model: Model) -> int:
    """One for each event that happened; none for a repeat or a refusal."""
    return len(model.grants) + sum(
        1 + (hold.status != "held") + len(hold.refunds) + hold.distributed
        for hold in model.holds.values()
    )


def _in_a_transaction_of_its_own(sequence: list[Step]) -> None:
    with transaction.atomic():
        check_books(sequence)
        transaction.set_rollback(True)


@pytest.mark.django_db
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sequence=steps)
def test_any_sequence_keeps_the_books(sequence: list[Step]) -> None:
    _in_a_transaction_of_its_own(sequence)


@pytest.mark.nightly
@pytest.mark.django_db
@settings(
    max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sequence=steps)
def test_any_of_many_sequences_keeps_the_books(sequence: list[Step]) -> None:
    _in_a_transaction_of_its_own(sequence)
