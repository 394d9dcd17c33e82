"""The serverless form: build an app once, run it by a soft deadline, get the result.

After the interface of Allpass (listing 2): ``build`` names what is trained, ``run`` starts it with
parameters of its own and a soft deadline. The market chooses the machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Unpack

from finetender.client import Client
from finetender.errors import JobFailedError
from finetender.operations.data import Data
from finetender.progress import choose_view
from finetender.terms import AdapterSettings, TrainingSettings
from finetender.values import Bid, Dataset, Job, JobEvent, Quote


@dataclass(frozen=True, slots=True)
class App:
    """Data and settings that are trained with, again and again."""

    client: Client
    name: str
    dataset: Dataset
    zone: str | None
    adapter: AdapterSettings
    training: TrainingSettings

    def quote(
        self, *, soft_deadline: str | datetime | timedelta, **training: Unpack[TrainingSettings]
    ) -> Quote:
        """What a run would cost now."""
        return self.client.get_quote(
            self.dataset,
            deadline=soft_deadline,
            zone=self.zone,
            adapter=self.adapter,
            training={**self.training, **training},
        )

    def run(
        self,
        *,
        soft_deadline: str | datetime | timedelta,
        price: str | float | Decimal,
        name: str | None = None,
        show: Callable[[JobEvent], None] | None = None,
        wait: bool = True,
        **training: Unpack[TrainingSettings],
    ) -> Run:
        """Buy a run and, unless ``wait`` is off, show its progress until it is done.

        Parameters
        ----------
        soft_deadline
            A time from now such as ``"6h"``, or a moment. A job that ends later than promised is
            not stopped; its owner gets a credit.
        price
            The most the run is worth, in dollars. What is paid does not depend on it.
        show
            Takes each event; by default a progress bar in a terminal or a notebook.
        training
            Settings of this run, such as ``epochs=3``.

        Raises
        ------
        BidRefusedError, JobFailedError
        """
        bid = self.client.place_bid(
            self.dataset,
            price=price,
            deadline=soft_deadline,
            name=name or self.name,
            zone=self.zone,
            adapter=self.adapter,
            training={**self.training, **training},
        )
        run = Run(self.client, bid)
        return run.wait(show=show or choose_view()) if wait else run


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was bought."""

    client: Client = field(repr=False)
    bid: Bid
    #: As it ended; ``None`` before ``wait``.
    job: Job | None = None

    @property
    def job_id(self) -> str:
        assert self.bid.job_id is not None
        return self.bid.job_id

    def wait(self, *, show: Callable[[JobEvent], None] | None = None) -> Run:
        """The run once its job has ended.

        Raises
        ------
        JobFailedError
        """
        for event in self.client.watch(self.job_id):
            if show is not None:
                show(event)
        job = self.client.get_job(self.job_id)
        if job.status != "succeeded":
            raise JobFailedError(f"{job.id} {job.status}: {job.failure_reason or 'no reason'}")
        return replace(self, job=job)

    def download(self, path: str | Path) -> Path:
        """Fetch the adapter."""
        return self.client.download_adapter(self.job_id, path)

    def ask(self, question: str, **settings: Any) -> Iterator[str]:
        """The tuned model's words."""
        return self.client.chat(self.job_id, question, **settings)


def build(
    app_name: str,
    *,
    data: Data,
    zone: str | None = None,
    adapter: AdapterSettings | None = None,
    training: TrainingSettings | None = None,
    client: Client | None = None,
) -> App:
    """Store the data and remember what it is trained with.

    Parameters
    ----------
    data
        A file, a data set, or a data set's id.
    zone
        Name of a zone or of its base model; not needed where there is one only.
    """
    client = client or Client()
    dataset = data if isinstance(data, Dataset) else client.ensure_dataset(data, zone=zone)
    return App(client, app_name, dataset, zone, adapter or {}, training or {})
