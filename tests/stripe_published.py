"""What Stripe publishes of its objects: ``python -m tests.stripe_published fixtures3.json``.

It reads the fixtures beside Stripe's published OpenAPI document (github.com/stripe/openapi,
``openapi/fixtures3.json``) and keeps of the objects that the market meets the fields and the types
of their values; ``NoneType`` is a field that is null there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent / "data" / "stripe" / "published.json"
#: The objects that the stand-in answers with, or that events bring.
OBJECTS = (
    *("account", "account_link", "balance", "balance_transaction", "charge", "customer", "dispute"),
    *("event", "payment_intent", "payment_method", "payout", "radar.early_fraud_warning"),
    *("refund", "review", "tax.calculation", "tax.transaction", "transfer", "transfer_reversal"),
    "webhook_endpoint",
)


def read_fields(fixtures: dict[str, Any]) -> dict[str, dict[str, str]]:
    """By object, the type of each field's value."""
    found = {
        each["object"]: {name: type(value).__name__ for name, value in sorted(each.items())}
        for each in fixtures["resources"].values()
        if isinstance(each, dict) and each.get("object") in OBJECTS and "deleted" not in each
    }
    return {name: found[name] for name in sorted(found)}


if __name__ == "__main__":
    [source] = sys.argv[1:]
    fields = read_fields(json.loads(Path(source).read_text()))
    KEPT.write_text(json.dumps(fields, indent=1) + "\n")
