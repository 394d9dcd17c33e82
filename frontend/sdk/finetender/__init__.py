"""Bid for LoRA fine-tuning on a Finetender market, follow the job, and use the adapter."""

from finetender.app import App, Run, build
from finetender.async_client import AsyncClient
from finetender.client import Client
from finetender.errors import (
    BidRefusedError,
    BusyError,
    ConflictError,
    ExportFailedError,
    FinetenderError,
    InvalidRequestError,
    JobFailedError,
    MarketError,
    NoFundsError,
    NotAuthorizedError,
    NotFoundError,
    UnreachableError,
    UsageError,
)
from finetender.exchange import Connection
from finetender.terms import AdapterSettings, JobTerms, PreparationSettings, TrainingSettings
from finetender.values import (
    Bid,
    CurvePoint,
    Dataset,
    ExpressAnswer,
    ExpressQuote,
    Job,
    JobEvent,
    Plan,
    Quote,
    Sweep,
    Zone,
)

__all__ = [
    "AdapterSettings",
    "App",
    "AsyncClient",
    "Bid",
    "BidRefusedError",
    "BusyError",
    "Client",
    "ConflictError",
    "Connection",
    "CurvePoint",
    "Dataset",
    "ExportFailedError",
    "ExpressAnswer",
    "ExpressQuote",
    "FinetenderError",
    "InvalidRequestError",
    "Job",
    "JobEvent",
    "JobFailedError",
    "JobTerms",
    "MarketError",
    "NoFundsError",
    "NotAuthorizedError",
    "NotFoundError",
    "Plan",
    "PreparationSettings",
    "Quote",
    "Run",
    "Sweep",
    "TrainingSettings",
    "UnreachableError",
    "UsageError",
    "Zone",
    "build",
]
