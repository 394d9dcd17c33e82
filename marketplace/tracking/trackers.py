"""What the market asks of any service that follows experiments, and which there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from marketplace.tracking.mlflow_server import send_to_mlflow
from marketplace.tracking.models import TrackingService
from marketplace.tracking.run_batches import SentBatch
from marketplace.tracking.wandb_client import has_wandb_client, send_to_wandb


@dataclass(frozen=True, slots=True)
class Tracker:
    """A service. To add one: a function that sends, its name in ``TrackingService``, and a line."""

    #: Sends a batch and gives the run's address; raises ``WorkFailed``. The same batch sent twice
    #: stands there once.
    send: Callable[[SentBatch], str]
    #: What a key looks like, whole.
    key_pattern: str
    #: The same for people.
    key_hint: str
    #: Whether organisations name a server of their own.
    has_address: bool = False
    #: Whether this market can send.
    is_installed: Callable[[], bool] = lambda: True


TRACKERS: Mapping[TrackingService, Tracker] = {
    TrackingService.WANDB: Tracker(
        send=send_to_wandb,
        # Letters and digits, with an instance's own prefix before a dash.
        key_pattern=r"[\x21-\x7e]{20,200}",
        key_hint="A key of Weights & Biases has 20 characters or more and no spaces. Copy it from "
        "your settings there.",
        is_installed=has_wandb_client,
    ),
    TrackingService.MLFLOW: Tracker(
        send=send_to_mlflow,
        # A server without sign-in takes none.
        key_pattern=r"[\x21-\x7e]{0,200}",
        key_hint="A key of MLflow is a token, or a name and a password as NAME:PASSWORD, without "
        "spaces and of 200 characters at most.",
        has_address=True,
    ),
}
