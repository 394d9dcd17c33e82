"""Customers, cards, payments, refunds and disputes."""

from __future__ import annotations

import secrets

from marketplace.embedded.stripe_stand_in.faults import refuse_card, refuse_missing, refuse_request
from marketplace.embedded.stripe_stand_in.store import Store, Thing, read_whole
from marketplace.embedded.stripe_stand_in.test_cards import TEST_CARDS, TestCard

AMOUNT_MIN, AMOUNT_MAX = 50, 99_999_999
#: Seconds after which an authorisation is gone.
AUTHORISATION_S = 7 * 24 * 3600
#: Cents that a dispute costs, whoever wins it.
DISPUTE_FEE = 1500


class Payments(Store):
    """What cards pay, and what goes back to them."""

    def get(self, kind: str, name: str) -> Thing:
        found = super().get(kind, name)
        if kind == "payment_intent":
            self._expire(found)
        return found

    # Customers and cards

    def create_customer(self, asked: Thing) -> Thing:
        name, metadata = asked.get("name"), asked.get("metadata", {})
        return self.add("cus", "customer", name=name, metadata=metadata)

    def detach_card(self, name: str) -> Thing:
        method = self.get("payment_method", name)
        if method["customer"] is None:
            raise refuse_missing("payment_method", name)
        method["customer"] = None
        return method

    def _choose_card(self, name: str, customer: str | None) -> tuple[Thing, TestCard]:
        """A saved card, or a new one of a named test card."""
        if name in TEST_CARDS:
            card = TEST_CARDS[name]
            details = {
                "brand": "visa",
                "last4": card.last4,
                "exp_month": 12,
                "exp_year": 2034,
                "funding": "credit",
                "country": "US",
                # Stripe's test cards differ by their number.
                "fingerprint": f"fp_{card.last4}",
            }
            method = self.add(
                "pm",
                "payment_method",
                type="card",
                card=details,
                customer=None,
                metadata={},
                _test_card=name,
            )
            return method, card
        method = self.get("payment_method", name)
        if method["customer"] is None or method["customer"] != customer:
            raise refuse_missing("payment_method", name)
        return method, TEST_CARDS[method["_test_card"]]

    # PaymentIntents

    def create_intent(self, asked: Thing) -> Thing:
        amount = read_whole(asked, "amount")
        if amount < AMOUNT_MIN:
            raise refuse_request(
                "amount_too_small", "Amount must be at least $0.50 usd", param="amount"
            )
        if amount > AMOUNT_MAX:
            raise refuse_request(
                "amount_too_large", "Amount must be no more than $999,999.99", param="amount"
            )
        if asked.get("currency") != "usd":
            raise refuse_request("parameter_invalid", "Invalid currency", param="currency")
        if (customer := asked.get("customer")) is not None:
            self.get("customer", customer)
        intent = self.add(
            "pi",
            "payment_intent",
            amount=amount,
            amount_capturable=0,
            amount_received=0,
            canceled_at=None,
            cancellation_reason=None,
            capture_method=asked.get("capture_method", "automatic"),
            client_secret=None,
            currency="usd",
            customer=customer,
            description=asked.get("description"),
            last_payment_error=None,
            latest_charge=None,
            metadata=asked.get("metadata", {}),
            next_action=None,
            payment_method=None,
            payment_method_options=asked.get("payment_method_options", {}),
            payment_method_types=asked.get("allowed_payment_method_types", ["card"]),
            setup_future_usage=asked.get("setup_future_usage"),
            status="requires_payment_method",
            transfer_group=asked.get("transfer_group"),
            _return_url=None,
            _expires=None,
        )
        intent["client_secret"] = f"{intent['id']}_secret_{secrets.token_hex(12)}"
        if asked.get("confirm"):
            self.confirm_intent(intent["id"], asked, off_session=bool(asked.get("off_session")))
        return intent

    def confirm_intent(self, name: str, asked: Thing, *, off_session: bool = False) -> Thing:
        intent = self.get("payment_intent", name)
        if intent["status"] not in ("requires_payment_method", "requires_action"):
            raise _refuse_state(intent, "confirm")
        method, card = self._choose_card(asked.get("payment_method", ""), intent["customer"])
        intent["_return_url"] = asked.get("return_url")
        intent["payment_method"] = method["id"]
        if card.code:
            raise self._decline(intent, card.code, card.message, card.decline_code)
        if card.asks and off_session:
            words = "The bank asks for a confirmation of this payment."
            raise self._decline(intent, "authentication_required", words)
        if card.asks:
            intent["status"] = "requires_action"
            url = f"{self.url}/confirm/{intent['id']}?secret={intent['client_secret']}"
            intent["next_action"] = {
                "type": "redirect_to_url",
                "redirect_to_url": {"url": url, "return_url": asked.get("return_url")},
            }
            self.announce("payment_intent.requires_action", intent)
            return intent
        return self._authorise(intent)

    def conclude_action(self, name: str, secret: str, *, is_confirmed: bool) -> Thing:
        """What the card's owner answered on their bank's page."""
        intent = self.get("payment_intent", name)
        if not secrets.compare_digest(secret, intent["client_secret"]):
            raise refuse_missing("payment_intent", name)
        if intent["status"] != "requires_action":
            return intent
        intent["next_action"] = None
        if is_confirmed:
            return self._authorise(intent)
        self._fail(intent, "payment_intent_authentication_failure", "It was not confirmed.")
        return intent

    def _fail(self, intent: Thing, code: str, message: str) -> None:
        intent["status"] = "requires_payment_method"
        intent["last_payment_error"] = {"type": "card_error", "code": code, "message": message}
        intent["payment_method"] = None
        self.announce("payment_intent.payment_failed", intent)

    def _decline(self, intent: Thing, code: str, message: str, decline_code: str = "") -> Exception:
        self._fail(intent, code, message)
        return refuse_card(code, message, intent, decline_code)

    def _authorise(self, intent: Thing) -> Thing:
        method = self.get("payment_method", intent["payment_method"])
        if intent["setup_future_usage"]:
            method["customer"] = intent["customer"]
        charge = self.add(
            "ch",
            "charge",
            amount=intent["amount"],
            amount_captured=0,
            amount_refunded=0,
            balance_transaction=None,
            captured=False,
            currency="usd",
            customer=intent["customer"],
            disputed=False,
            paid=True,
            payment_intent=intent["id"],
            payment_method=method["id"],
            refunded=False,
            status="succeeded",
            metadata={},
        )
        intent["latest_charge"], intent["last_payment_error"] = charge["id"], None
        if intent["capture_method"] == "manual":
            intent["status"], intent["amount_capturable"] = "requires_capture", intent["amount"]
            intent["_expires"] = self.now() + AUTHORISATION_S
            self.announce("payment_intent.amount_capturable_updated", intent)
            return intent
        self._collect(intent, charge, intent["amount"])
        return intent

    def _collect(self, intent: Thing, charge: Thing, amount: int) -> None:
        # 2.9 % and 30 cents, as Stripe charges in the US.
        fee = min(amount, (amount * 29 + 500) // 1000 + 30)
        moved = self.move("charge", charge["id"], amount, fee=fee)
        charge |= {
            "captured": True,
            "amount_captured": amount,
            "balance_transaction": moved["id"],
        }
        intent |= {"status": "succeeded", "amount_received": amount, "amount_capturable": 0}
        self.announce("charge.captured", charge)
        self.announce("payment_intent.succeeded", intent)
        method = self.get("payment_method", intent["payment_method"])
        if TEST_CARDS[method["_test_card"]].disputes:
            self.open_dispute(intent["id"])

    def capture_intent(self, name: str, asked: Thing) -> Thing:
        intent = self.get("payment_intent", name)
        if intent["status"] != "requires_capture":
            raise _refuse_state(intent, "capture")
        amount = intent["amount"]
        if "amount_to_capture" in asked:
            amount = read_whole(asked, "amount_to_capture")
        if not 0 < amount <= intent["amount"]:
            raise refuse_request(
                "amount_too_large" if amount > 0 else "parameter_invalid_integer",
                "The amount to capture must be at least 1 and at most the amount authorised.",
                param="amount_to_capture",
            )
        if amount < AMOUNT_MIN:
            raise refuse_request(
                "amount_too_small",
                "Amount must be at least $0.50 usd",
                param="amount_to_capture",
            )
        self._collect(intent, self.get("charge", intent["latest_charge"]), amount)
        return intent

    def cancel_intent(self, name: str) -> Thing:
        intent = self.get("payment_intent", name)
        if intent["status"] in ("succeeded", "canceled"):
            raise _refuse_state(intent, "cancel")
        self._cancel(intent, "requested_by_customer")
        return intent

    def _cancel(self, intent: Thing, reason: str) -> None:
        intent |= {
            "status": "canceled",
            "canceled_at": self.now(),
            "cancellation_reason": reason,
            "amount_capturable": 0,
            "next_action": None,
        }
        self.announce("payment_intent.canceled", intent)

    def _expire(self, intent: Thing) -> None:
        if intent["status"] == "requires_capture" and intent["_expires"] <= self.now():
            self._cancel(intent, "automatic")

    # Refunds and disputes

    def create_refund(self, asked: Thing) -> Thing:
        intent = self.get("payment_intent", asked.get("payment_intent", ""))
        charge = self.things.get(intent["latest_charge"] or "")
        if charge is None or not charge["captured"]:
            raise refuse_request("charge_not_captured", "This charge was not captured.")
        if charge["disputed"]:
            raise refuse_request("charge_disputed", "This charge has been charged back.")
        left = charge["amount_captured"] - charge["amount_refunded"]
        amount = read_whole(asked, "amount") if "amount" in asked else left
        if left == 0:
            raise refuse_request("charge_already_refunded", "This charge has been refunded.")
        if not 0 < amount <= left:
            raise refuse_request(
                "amount_too_large", f"Refund amount is greater than {left}", param="amount"
            )
        refund = self.add(
            "re",
            "refund",
            amount=amount,
            charge=charge["id"],
            payment_intent=intent["id"],
            currency="usd",
            metadata=asked.get("metadata", {}),
            reason=None,
            status="succeeded",
            failure_reason=None,
            balance_transaction=None,
        )
        refund["balance_transaction"] = self.move("refund", refund["id"], -amount)["id"]
        charge["amount_refunded"] += amount
        charge["refunded"] = charge["amount_refunded"] == charge["amount_captured"]
        self.announce("charge.refunded", charge)
        return refund

    def fail_refund(self, name: str) -> Thing:
        """The card's bank gives a refund back, days after it was made."""
        refund = self.get("refund", name)
        refund |= {"status": "failed", "failure_reason": "lost_or_stolen_card"}
        moved = self.move("refund_failure", name, refund["amount"])
        refund["failure_balance_transaction"] = moved["id"]
        self.get("charge", refund["charge"])["amount_refunded"] -= refund["amount"]
        self.announce("refund.failed", refund)
        return refund

    def appeal_dispute(self, name: str) -> Thing:
        """One that was lost is won after all."""
        dispute = self.get("dispute", name)
        dispute["status"] = "won"
        self.move("adjustment", dispute["id"], dispute["amount"])
        self.announce("charge.dispute.updated", dispute)
        return dispute

    def pay_own_bank(self, amount: int) -> Thing:
        currency = self.currency
        payout = self.add(
            "po", "payout", amount=amount, currency=currency, status="paid", _account=""
        )
        self.move("payout", payout["id"], -amount, currency=currency)
        self.announce("payout.paid", payout)
        return payout

    def open_dispute(
        self, intent_name: str, *, is_inquiry: bool = False, amount: int | None = None
    ) -> Thing:
        """A chargeback, which takes the money at once, or an inquiry, which takes nothing.

        All that banks take back of a payment is no more than the payment.
        """
        intent = self.get("payment_intent", intent_name)
        charge = self.get("charge", intent["latest_charge"])
        left = self._find_contestable(charge)
        amount = left if amount is None else amount
        if not 0 < amount <= left:
            raise refuse_request("charge_disputed", f"Of this charge {left} can be contested.")
        charge["disputed"] = charge["disputed"] or not is_inquiry
        dispute = self.add(
            "dp",
            "dispute",
            amount=amount,
            charge=charge["id"],
            payment_intent=intent["id"],
            currency="usd",
            reason="fraudulent",
            status="warning_needs_response" if is_inquiry else "needs_response",
            metadata={},
        )
        if not is_inquiry:
            self._withdraw(dispute)
        self.announce("charge.dispute.created", dispute)
        return dispute

    def escalate_inquiry(self, name: str) -> Thing:
        """The bank takes the money after all."""
        dispute = self.get("dispute", name)
        charge = self.get("charge", dispute["charge"])
        if dispute["amount"] > self._find_contestable(charge):
            raise refuse_request("charge_disputed", "This charge has been charged back.")
        charge["disputed"] = True
        dispute["status"] = "needs_response"
        self._withdraw(dispute)
        self.announce("charge.dispute.funds_withdrawn", dispute)
        return dispute

    def _find_contestable(self, charge: Thing) -> int:
        """Of a charge, the cents that no bank has taken back or decided about."""
        known = (one for one in self.find("dispute") if one["charge"] == charge["id"])
        taken = (one["amount"] for one in known if not one["status"].startswith("warning"))
        return charge["amount_captured"] - sum(taken)

    def _withdraw(self, dispute: Thing) -> None:
        self.move("adjustment", dispute["id"], -dispute["amount"], fee=DISPUTE_FEE)

    def close_inquiry(self, name: str) -> Thing:
        dispute = self.get("dispute", name)
        dispute["status"] = "warning_closed"
        self.announce("charge.dispute.closed", dispute)
        return dispute

    def close_dispute(self, name: str, *, won: bool) -> Thing:
        dispute = self.get("dispute", name)
        dispute["status"] = "won" if won else "lost"
        if won:
            self.move("adjustment", dispute["id"], dispute["amount"])
        self.announce("charge.dispute.closed", dispute)
        return dispute


def _refuse_state(intent: Thing, verb: str) -> Exception:
    expired = intent["cancellation_reason"] == "automatic"
    code = "charge_expired_for_capture" if expired else "payment_intent_unexpected_state"
    return refuse_request(
        code,
        f"You cannot {verb} this PaymentIntent because it has a status of {intent['status']}.",
        payment_intent=intent,
    )
