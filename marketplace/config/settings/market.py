"""The market's own settings: what its code reads, beside what Django and libraries read.

A wrong value in the environment is a clear error of ``environment``.
"""

from pathlib import Path

from marketplace.config.settings import environment

BASE_DIR = Path(__file__).resolve().parents[3]
DATA_DIR = environment.folder("DATA_DIR", BASE_DIR / ".data")
#: Where browsers and nodes reach the market, without a slash at the end.
PUBLIC_URL = environment.text("PUBLIC_URL", "http://127.0.0.1:8000").rstrip("/")
METRICS_TOKEN = environment.text("METRICS_TOKEN", "")
#: Who gets a mail when a part of the market stops: addresses with commas; empty: all operators.
ALERT_MAILS = [
    each.strip() for each in environment.text("ALERT_MAILS", "").split(",") if each.strip()
]
#: An address that is sent ``{"text": ...}`` as well, as Slack and others take it.
ALERT_WEBHOOK = environment.text("ALERT_WEBHOOK", "")

#: Where traces of bids go: ``otlp``, ``console``, or nowhere; ``OTEL_*`` says the rest.
TRACES_EXPORTER = environment.traces_exporter()

#: Whether the web server writes a line for each answer.
ACCESS_LOG = environment.flag("ACCESS_LOG", default=False)

# --- Promises and people --------------------------------------------------------------------------

#: What the market pays for a missed deadline, in percent of the payment.
SLA_CREDIT_PERCENT = int(environment.number("SLA_CREDIT_PERCENT", 25))
#: What the market bears at most in a day for the faults of one provider, in micro-dollars.
HOUSE_BEARS_MICROS_PER_DAY = int(1_000_000 * environment.number("HOUSE_BEARS_USD_PER_DAY", 25))
#: Days for which an organisation is new (0: never). While it is, and no operator trusts it, it may
#: spend a limited sum a day, have a limited number of jobs, and store a quarter of what others may.
NEW_ACCOUNT_DAYS = int(environment.number("NEW_ACCOUNT_DAYS", 14))
NEW_ACCOUNT_MICROS_PER_DAY = int(1_000_000 * environment.number("NEW_ACCOUNT_USD_PER_DAY", 200))
NEW_ACCOUNT_JOBS = int(environment.number("NEW_ACCOUNT_JOBS", 20, at_least=1))
#: Whether an operator approves a provider before it lists nodes, which see the data of jobs.
PROVIDERS_NEED_APPROVAL = environment.flag("PROVIDERS_NEED_APPROVAL", default=True)
#: Share of jobs' beginnings and checkpoints whose next steps another provider's node trains again,
#: and of results that it measures again; those of early ends always are, unless this is 0.
SPOT_CHECK_SHARE = environment.number("SPOT_CHECK_SHARE", 0.02)
#: Whether operators must have a second factor before they see anything.
OPERATORS_NEED_MFA = environment.flag("OPERATORS_NEED_MFA", default=True)

# --- The log of the auction -----------------------------------------------------------------------

#: Whether a zone's log publishes all bids; without it, commitments stand there.
PUBLISH_BIDS = environment.flag("PUBLISH_BIDS", default=False)
#: Folder of the key that signs heads and receipts; the web server does not read it.
MARKET_KEY_DIR = environment.folder("MARKET_KEY_DIR", DATA_DIR / "keys")
#: Who gets the signed heads of the logs: files (file:///...) and addresses (https://...).
AUCTION_WITNESSES = environment.words("AUCTION_WITNESSES", "")
#: Who is asked to sign the promise of each day's secret, so that the market alone does not choose
#: the seeds of its prices: an address that takes the text to sign, and its public key in hex.
AUCTION_DAY_WITNESS = environment.text("AUCTION_DAY_WITNESS", "").strip()
AUCTION_DAY_WITNESS_KEY = environment.public_key("AUCTION_DAY_WITNESS_KEY")
if bool(AUCTION_DAY_WITNESS) != bool(AUCTION_DAY_WITNESS_KEY):
    raise environment.ImproperlyConfigured(
        "AUCTION_DAY_WITNESS and AUCTION_DAY_WITNESS_KEY name one witness: set both or none."
    )

# --- Nodes and rented machines --------------------------------------------------------------------

#: Machines the market rents elsewhere: what they run, and what tells them from another market's.
TIERS_WORKER_IMAGE = environment.text("TIERS_WORKER_IMAGE", "")
TIERS_TAG = environment.text("TIERS_TAG", "")
TIERS_SKYPILOT_GPUS = environment.words("TIERS_SKYPILOT_GPUS", "A100,L4,H100")
#: Dollars an hour; Modal has no call that tells its prices.
TIERS_MODAL_PRICES = environment.words("TIERS_MODAL_PRICES", "A100=2.10")

#: Folder of what a provider's machine installs from, as ``docker/node_dist.sh`` writes it.
NODE_INSTALL_DIR = environment.folder("NODE_INSTALL_DIR", BASE_DIR / "dist")
#: An image of the node that providers can pull; empty: they build it from this market's files.
NODE_IMAGE = environment.text("NODE_IMAGE", "")

#: Of the hub, for gated base models; rented machines get it, too.
HF_TOKEN = environment.text("HF_TOKEN", "")

# --- Questions ------------------------------------------------------------------------------------

#: The operator's own model server (vLLM or another that loads adapters at run time); empty: nodes
#: answer questions. Zones by its names of their base models, such as ``chat=meta-llama/Llama-3.1``;
#: without any, all zones under their base models' own names.
SERVING_URL = environment.text("SERVING_URL", "")
SERVING_API_KEY = environment.text("SERVING_API_KEY", "")
SERVING_MODELS = environment.words("SERVING_MODELS")
#: A folder that the server reads as well: adapters are unpacked into it.
SERVING_ADAPTERS = environment.folder("SERVING_ADAPTERS", DATA_DIR / "served-adapters")
#: Micro-dollars for a million tokens while no node of a zone is on sale; none: questions wait.
SERVING_RATE_MICROS = int(environment.number("SERVING_RATE_MICROS", 0)) or None
#: Answers of the server follow schemas. It compiles those of strangers, for all that it serves.
SERVING_SCHEMAS = environment.flag("SERVING_SCHEMAS", default=False)

# --- Files ----------------------------------------------------------------------------------------

#: Largest file that a node may make of a model, and where adapters are pushed.
EXPORT_BYTES_MAX = int(environment.number("EXPORT_BYTES_MAX", 64 * 1024**3, at_least=1024))
HUB_URL = environment.text("HUB_URL", "") or None
#: A server of Weights & Biases of one's own; unset: the public one.
WANDB_URL = environment.text("WANDB_URL", "") or None
#: Organisations' own MLflow servers may have addresses inside the operator's network.
TRACKING_PRIVATE = environment.flag("TRACKING_PRIVATE", default=False)
#: Bytes of the largest upload of one data set.
UPLOAD_BYTES_MAX = int(environment.number("UPLOAD_BYTES_MAX", 2 * 1024**3, at_least=1024))

#: Bytes of all data sets that one organisation may have stored.
DATASET_BYTES_PER_ORGANISATION = int(
    environment.number("DATASET_BYTES_PER_ORGANISATION", 4 * 1024**3, at_least=1024)
)

# --- Money ----------------------------------------------------------------------------------------

#: What each new organisation can take once, in dollars; nothing where money is real.
DEMO_MONEY_MICROS = int(environment.number("DEMO_MONEY_USD", 0, at_least=0)) * 1_000_000
#: The payment gateway's keys; without the secret one, the market takes no cards.
STRIPE_SECRET_KEY = environment.text("STRIPE_SECRET_KEY", "")
STRIPE_PUBLISHABLE_KEY = environment.text("STRIPE_PUBLISHABLE_KEY", "")
#: What its webhooks are signed with; they come to ``/webhooks/stripe``.
STRIPE_WEBHOOK_SECRET = environment.text("STRIPE_WEBHOOK_SECRET", "")
#: What events of those who earn are signed with; both are unset where *Connect Stripe* made them.
STRIPE_ACCOUNTS_WEBHOOK_SECRET = environment.text("STRIPE_ACCOUNTS_WEBHOOK_SECRET", "")
#: Where the stand-in of the demo and the tests is; empty: Stripe itself.
STRIPE_API_URL = environment.loopback_url("STRIPE_API_URL")
#: The least that a card may fill a wallet with, in cents; the gateway keeps about 30 of each.
CARD_LEAST_CENTS = int(100 * environment.number("CARD_LEAST_USD", 5, at_least=0.5))
#: What the gateway keeps of a payment at most, as a share and in cents: a part of every price.
CARD_FEE_SHARE = environment.number("CARD_FEE_PERCENT", 0) / 100
CARD_FEE_CENTS = int(100 * environment.number("CARD_FEE_USD", 0))
#: What the cards of one organisation may pay a day, in cents, and what goes back to them.
CARD_DAY_CENTS = int(100 * environment.number("CARD_DAY_USD", 10_000))
CARD_BACK_CENTS = int(100 * environment.number("CARD_BACK_USD", 2_000))
#: The same in an organisation's first days.
CARD_FIRST_DAYS = environment.number("CARD_FIRST_DAYS", 30)
CARD_FIRST_CENTS = int(100 * environment.number("CARD_FIRST_USD", 500))
CARD_FIRST_BACK_CENTS = int(100 * environment.number("CARD_FIRST_BACK_USD", 200))
#: What goes back to all cards a day, in cents.
CARD_BACK_ALL_CENTS = int(100 * environment.number("CARD_BACK_ALL_USD", 20_000))
#: From so many cents on, a card's bank is asked whether its owner pays (3-D Secure); it is for an
#: organisation's first payments anyway.
CARD_ASK_BANK_CENTS = int(100 * environment.number("CARD_ASK_BANK_USD", 500))
#: Days between earning and payout; long enough to notice that something was wrong.
PAYOUT_DELAY_DAYS = environment.number("PAYOUT_DELAY_DAYS", 7)
#: Days in which a card payment may be contested: what an organisation earns from itself with it is
#: not payable before.
CARD_CONTESTED_DAYS = environment.number("CARD_CONTESTED_DAYS", 120)
#: Of a new payee's earnings, the percent that stay, and how many days.
PAYOUT_RESERVE_PERCENT = int(environment.number("PAYOUT_RESERVE_PERCENT", 10))
PAYOUT_RESERVE_DAYS = environment.number("PAYOUT_RESERVE_DAYS", 60)
#: Days between two payouts to one organisation, and the least that is paid out.
PAYOUT_EVERY_DAYS = environment.number("PAYOUT_EVERY_DAYS", 7)
PAYOUT_THRESHOLD_MICROS = int(1_000_000 * environment.number("PAYOUT_THRESHOLD_USD", 10))

#: Who sells, as invoices say it.
SELLER_NAME = environment.text("SELLER_NAME", "Finetender")
SELLER_ADDRESS = environment.text("SELLER_ADDRESS", "").replace("\\n", "\n")
SELLER_COUNTRY = environment.text("SELLER_COUNTRY", "")
SELLER_TAX_ID = environment.text("SELLER_TAX_ID", "")
#: The tax in prices by the buyer's country, in thousandths of a percent.
TAX_RATES = environment.rates("TAX_RATES")
#: Whether the gateway (Stripe Tax) says what part of a price is tax, instead of the table.
STRIPE_TAX = environment.flag("STRIPE_TAX", default=False)

# --- Other systems and the network ----------------------------------------------------------------

#: Whether vendors' own systems may be inside this market's network, at http:// too.
VENDOR_ENDPOINTS_PRIVATE = environment.flag("VENDOR_ENDPOINTS_PRIVATE", default=False)
#: Whether integrators' webhooks may be inside this market's network, at http:// too.
WEBHOOKS_PRIVATE = environment.flag("WEBHOOKS_PRIVATE", default=False)
#: Proxies in front of the market, each of which appends to ``X-Forwarded-For``; see
#: ``marketplace.common.client_address``.
TRUSTED_PROXY_COUNT = int(environment.number("TRUSTED_PROXY_COUNT", 0))
#: Requests a minute, by kind, of an organisation or of an address that no one signed in from; see
#: ``marketplace.common.request_rates``.
API_REQUESTS_PER_MINUTE = {
    kind: int(environment.number(f"API_{kind.upper()}_PER_MINUTE", default, at_least=1))
    for kind, default in {
        "read": 1200,
        "quotes": 600,
        "bids": 1200,
        "cancels": 120,
        "acts": 120,
        "uploads": 60,
        "public": 300,
        "transcripts": 30,
        "questions": 600,
    }.items()
}
