"""``python -m marketplace.embedded.stripe_stand_in --port 12111 --state FILE``; keys come from the
environment, as the market's do.
"""

import argparse
import os
from pathlib import Path

from marketplace.embedded.stripe_stand_in.server import StandIn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--webhook-url", required=True)
    asked = parser.parse_args()
    StandIn(
        port=asked.port,
        secret_key=os.environ["STRIPE_SECRET_KEY"],
        publishable_key=os.environ["STRIPE_PUBLISHABLE_KEY"],
        webhook_secret=os.environ["STRIPE_WEBHOOK_SECRET"],
        accounts_secret=os.environ["STRIPE_ACCOUNTS_WEBHOOK_SECRET"],
        webhook_url=asked.webhook_url,
        state=asked.state,
    ).serve_forever()


if __name__ == "__main__":
    main()
