"""The ledger, what is held and earned in it, cards, payouts, caps and invoices."""

from marketplace.payments.models.caps import CapPeriod, SpendingCap
from marketplace.payments.models.cards import (
    MICROS_PER_CENT,
    PAYMENT_OVER,
    CardCustomer,
    CardPayment,
    CardRefund,
    Chargeback,
    Freeze,
    PaymentPurpose,
    PaymentStatus,
    RefundStatus,
    SavedCard,
    WalletRules,
)
from marketplace.payments.models.earnings import Earning, EarningKind
from marketplace.payments.models.funds_requests import FundsRequest
from marketplace.payments.models.gateway import (
    CallKind,
    CallStatus,
    GatewayCall,
    GatewayComparison,
    WebhookEvent,
)
from marketplace.payments.models.holds import Distribution, Hold, HoldStatus
from marketplace.payments.models.invoices import (
    COUNTRY_CHOICES,
    BillingDetails,
    Invoice,
    InvoicedEntry,
    InvoiceLine,
    InvoiceLineKind,
    InvoiceSeries,
)
from marketplace.payments.models.ledger import (
    ENTRY_PREFIX,
    HOUSE_KINDS,
    AccountKind,
    Entry,
    EntryKind,
    LedgerAccount,
    Posting,
)
from marketplace.payments.models.manual_entries import ClosedMonth, ManualEntry, ManualKind
from marketplace.payments.models.payouts import (
    Payout,
    PayoutAccount,
    PayoutStatus,
    Transfer,
    TransferStatus,
)
from marketplace.payments.models.seals import LedgerSeal, SealedSum, UnsealedEntry

__all__ = [
    "COUNTRY_CHOICES",
    "ENTRY_PREFIX",
    "HOUSE_KINDS",
    "MICROS_PER_CENT",
    "PAYMENT_OVER",
    "AccountKind",
    "BillingDetails",
    "CallKind",
    "CallStatus",
    "CapPeriod",
    "CardCustomer",
    "CardPayment",
    "CardRefund",
    "Chargeback",
    "ClosedMonth",
    "Distribution",
    "Earning",
    "EarningKind",
    "Entry",
    "EntryKind",
    "Freeze",
    "FundsRequest",
    "GatewayCall",
    "GatewayComparison",
    "Hold",
    "HoldStatus",
    "Invoice",
    "InvoiceLine",
    "InvoiceLineKind",
    "InvoiceSeries",
    "InvoicedEntry",
    "LedgerAccount",
    "LedgerSeal",
    "ManualEntry",
    "ManualKind",
    "PaymentPurpose",
    "PaymentStatus",
    "Payout",
    "PayoutAccount",
    "PayoutStatus",
    "Posting",
    "RefundStatus",
    "SavedCard",
    "SealedSum",
    "SpendingCap",
    "Transfer",
    "TransferStatus",
    "UnsealedEntry",
    "WalletRules",
    "WebhookEvent",
]
