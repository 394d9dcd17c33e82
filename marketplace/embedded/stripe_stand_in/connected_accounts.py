"""Accounts of those who earn, transfers to them and payouts to their banks."""

from __future__ import annotations

import secrets

from marketplace.embedded.stripe_stand_in.faults import refuse_request
from marketplace.embedded.stripe_stand_in.store import Store, Thing, read_whole

#: Why an account can be paid nothing yet.
REQUIREMENTS = ["individual.first_name", "external_account", "tos_acceptance.date"]

#: Where accounts settle in euros.
EURO = ("AT", "BE", "DE", "ES", "FI", "FR", "IE", "IT", "NL", "PT")


class ConnectedAccounts(Store):
    """What leaves for those who earn."""

    def create_account(self, asked: Thing) -> Thing:
        return self.add(
            "acct",
            "account",
            type="none",
            country=asked.get("country", "US"),
            default_currency="eur" if asked.get("country") in EURO else "usd",
            charges_enabled=False,
            payouts_enabled=False,
            details_submitted=False,
            metadata=asked.get("metadata", {}),
            requirements=_build_requirements(REQUIREMENTS),
        )

    def describe_own_account(self) -> Thing:
        return {
            "id": "acct_market",
            "object": "account",
            "country": "US",
            "default_currency": self.currency,
            "charges_enabled": True,
            "payouts_enabled": True,
        }

    def create_endpoint(self, asked: Thing) -> Thing:
        """A webhook endpoint; its secret is told this once."""
        made = self.add(
            "we",
            "webhook_endpoint",
            url=asked["url"],
            enabled_events=asked["enabled_events"],
            metadata=asked.get("metadata", {}),
            status="enabled",
        )
        is_of_accounts = bool(asked.get("connect"))
        secret = self.delivery.accounts_secret if is_of_accounts else self.delivery.secret
        return {**made, "secret": secret}

    def delete_endpoint(self, name: str) -> Thing:
        self.get("webhook_endpoint", name)
        del self.things[name]
        return {"id": name, "object": "webhook_endpoint", "deleted": True}

    def finish_onboarding(self, name: str) -> Thing:
        account = self.get("account", name)
        account |= {
            "payouts_enabled": True,
            "details_submitted": True,
            "requirements": _build_requirements([]),
        }
        self.announce("account.updated", account, account=name)
        return account

    def create_account_link(self, asked: Thing) -> Thing:
        self.get("account", asked.get("account", ""))
        secret = secrets.token_urlsafe(16)
        link = self.add(
            "link",
            "_account_link",
            account=asked["account"],
            secret=secret,
            return_url=asked.get("return_url"),
        )
        return {
            "object": "account_link",
            "created": self.now(),
            "expires_at": self.now() + 300,
            "url": f"{self.url}/onboarding/{link['id']}?secret={secret}",
        }

    def create_transfer(self, asked: Thing) -> Thing:
        amount = read_whole(asked, "amount")
        account = self.get("account", asked.get("destination", ""))
        if amount < 1:
            raise refuse_request("parameter_invalid_integer", "Invalid amount", param="amount")
        if not account["payouts_enabled"]:
            raise refuse_request(
                "insufficient_capabilities_for_transfer",
                "The account has not finished its onboarding.",
            )
        if asked.get("currency") != self.currency or amount > self.balance():
            raise refuse_request(
                "balance_insufficient", "You have insufficient funds in your Stripe account."
            )
        transfer = self.add(
            "tr",
            "transfer",
            amount=amount,
            amount_reversed=0,
            currency=self.currency,
            destination=account["id"],
            metadata=asked.get("metadata", {}),
            reversed=False,
            transfer_group=asked.get("transfer_group"),
            description=asked.get("description"),
        )
        currency = self.currency
        self.move("transfer", transfer["id"], -amount, currency=currency)
        self.move("payment", transfer["id"], amount, account=account["id"], currency=currency)
        self.announce("transfer.created", transfer)
        return transfer

    def create_reversal(self, name: str, asked: Thing) -> Thing:
        transfer = self.get("transfer", name)
        left = transfer["amount"] - transfer["amount_reversed"]
        amount = read_whole(asked, "amount") if "amount" in asked else left
        if not 0 < amount <= left:
            raise refuse_request("amount_too_large", "More than is left.", param="amount")
        currency, to = transfer["currency"], transfer["destination"]
        rate = self.rates[self.find_currency(to)] / self.rates[currency]
        if round(amount * rate) > self.balance(to):
            raise refuse_request("balance_insufficient", "The account has paid it out.")
        transfer["amount_reversed"] += amount
        transfer["reversed"] = transfer["amount_reversed"] == transfer["amount"]
        reversal = self.add(
            "trr",
            "transfer_reversal",
            amount=amount,
            transfer=name,
            currency=currency,
            metadata=asked.get("metadata", {}),
        )
        self.move("transfer_refund", reversal["id"], amount, currency=currency)
        self.move("payment_refund", reversal["id"], -amount, account=to, currency=currency)
        self.announce("transfer.reversed", transfer)
        return reversal

    def create_payout(self, asked: Thing, *, account: str) -> Thing:
        self.get("account", account)
        amount = read_whole(asked, "amount")
        currency = self.find_currency(account)
        if asked.get("currency") != currency or not 0 < amount <= self.balance(account):
            raise refuse_request("balance_insufficient", "The account has less than that.")
        payout = self.add(
            "po",
            "payout",
            amount=amount,
            arrival_date=self.now(),
            currency=currency,
            failure_code=None,
            failure_message=None,
            metadata=asked.get("metadata", {}),
            status="paid",
            _account=account,
        )
        self.move("payout", payout["id"], -amount, account=account, currency=currency)
        if self.payout_failure:
            payout |= {
                "status": "failed",
                "failure_code": self.payout_failure,
                "failure_message": "The bank did not take the payout.",
            }
            name = payout["id"]
            self.move("payout_failure", name, amount, account=account, currency=currency)
        self.announce(f"payout.{payout['status']}", payout, account=account)
        return payout


def _build_requirements(due: list[str]) -> Thing:
    return {
        "currently_due": due,
        "disabled_reason": "requirements.past_due" if due else None,
    }
