"""What the market answers with, as frozen values; ``raw`` has every member of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

Raw = Mapping[str, Any]


def _usd(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True)
class Zone:
    """What one base model is trained on."""

    name: str
    base_model: str
    slot_s: float
    latest_deadline: datetime
    #: The price beat under way, which a bid names to be told its price first; ``None``: the market
    #: is of a version that tells none.
    beat: str | None
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: Raw) -> Zone:
        latest = datetime.fromisoformat(raw["latest_deadline"])
        return cls(raw["name"], raw["base_model"], raw["slot_s"], latest, raw.get("beat"), raw)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training data as the market read it."""

    id: str
    name: str
    rows: int
    tokens: int
    format: str
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: Raw) -> Dataset:
        return cls(raw["id"], raw["name"], raw["rows"], raw["tokens"], raw["format"], raw)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a preparation would do to a data set; ``raw["plan"]`` says it step by step."""

    id: str
    dataset_id: str
    #: ``made`` or ``confirmed``.
    status: str
    #: Rows that stay.
    rows: int
    tokens: int
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: Raw) -> Plan:
        of = raw["id"], raw["dataset_id"], raw["status"]
        return cls(*of, raw["rows"], raw["tokens"], raw)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The price from one deadline on."""

    deadline: datetime
    price: Decimal


@dataclass(frozen=True, slots=True)
class Quote:
    """What a job would cost now; it reserves nothing."""

    zone: str
    dataset_id: str
    deadline: datetime
    #: Dollars; ``None`` where no price wins, and then ``reason`` says why.
    posted_price: Decimal | None
    finish_at: datetime | None
    reason: str | None
    expires_at: datetime | None
    #: Where the price falls with a later deadline.
    curve: tuple[CurvePoint, ...]
    #: A warm start that was found: bid with it as ``model``. ``posted_price`` is the price with it.
    model: str | None
    #: The price without that warm start.
    cold_price: Decimal | None
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: Raw, *, dataset_id: str) -> Quote:
        curve = tuple(
            CurvePoint(datetime.fromisoformat(point["deadline"]), Decimal(point["price"]))
            for point in raw["curve"]
        )
        return cls(
            zone=raw["zone"],
            dataset_id=dataset_id,
            deadline=datetime.fromisoformat(raw["deadline"]),
            posted_price=_usd(raw["posted_price"]),
            finish_at=_moment(raw["finish_at"]),
            reason=raw["reason_text"],
            expires_at=_moment(raw["expires_at"]),
            curve=curve,
            model=raw["warm_start"]["model"],
            cold_price=_usd(raw["warm_start"]["cold_price"]),
            raw=raw,
        )


@dataclass(frozen=True, slots=True)
class Bid:
    """A bid and what was decided."""

    id: str
    status: str
    #: The most the job is worth, in dollars, as the market knows it; ``None``: it was not told.
    price: Decimal | None
    #: What the market asks of a bid that was not told the most it is worth, and until when.
    offered_price: Decimal | None
    #: What is paid, which does not depend on ``price``; ``None`` while it is not decided.
    payment: Decimal | None
    job_id: str | None
    deadline: datetime
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: Raw) -> Bid:
        decision: Raw = raw["decision"] or {}
        offer: Raw = raw.get("offer") or {}
        return cls(
            id=raw["id"],
            status=raw["status"],
            price=_usd(raw["price"]),
            offered_price=_usd(offer.get("price")),
            payment=_usd(decision.get("payment")),
            job_id=raw["job_id"],
            deadline=datetime.fromisoformat(raw["deadline"]),
            raw=raw,
        )


@dataclass(frozen=True, slots=True)
class Sweep:
    """Bids for jobs that differ in some settings."""

    id: str
    status: str
    bids: tuple[Bid, ...]
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: Raw) -> Sweep:
        return cls(raw["id"], raw["status"], tuple(Bid.read(bid) for bid in raw["bids"]), raw)


#: Statuses after which a job does not change.
ENDED = frozenset({"succeeded", "failed", "cancelled", "paused"})


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was bought, as it stands."""

    id: str
    name: str
    zone: str
    status: str
    step: int
    total_steps: int
    train_loss: float | None
    valid_loss: float | None
    #: What was paid, in dollars.
    price: Decimal | None
    deadline: datetime
    eta_at: datetime | None
    failure_reason: str | None
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: Raw) -> Job:
        progress = raw["progress"]
        return cls(
            id=raw["id"],
            name=raw["name"],
            zone=raw["zone"],
            status=raw["status"],
            step=progress["step"] or 0,
            total_steps=progress["total_steps"] or 0,
            train_loss=progress["train_loss"],
            valid_loss=progress["valid_loss"],
            price=_usd(raw["price"]),
            deadline=datetime.fromisoformat(raw["deadline"]),
            eta_at=_moment(progress["eta_at"]),
            failure_reason=raw["failure_reason"],
            raw=raw,
        )

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job, or where it stands (``kind`` is ``progress``)."""

    seq: int
    kind: str
    message: str
    #: Status of the job after it, and where it stands; empty where an old event is read again.
    status: str
    progress: Raw
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: Raw) -> JobEvent:
        return cls(
            seq=raw["seq"],
            kind=raw.get("kind", raw["type"]),
            message=raw.get("message", ""),
            status=raw.get("status", ""),
            progress=raw.get("progress") or (raw if raw["type"] == "progress" else {}),
            raw=raw,
        )


@dataclass(frozen=True, slots=True)
class ExpressQuote:
    """What prompt tuning costs by how soon it is done."""

    zone: str
    dataset_id: str
    least_slo_s: float
    #: Seconds and dollars, soonest first.
    prices: tuple[tuple[float, Decimal], ...]
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: Raw, *, dataset_id: str) -> ExpressQuote:
        prices = tuple((row["slo_s"], Decimal(row["price"])) for row in raw["prices"])
        return cls(raw["zone"], dataset_id, raw["least_slo_s"], prices, raw)


@dataclass(frozen=True, slots=True)
class ExpressAnswer:
    """The express lane's answer: a certificate, a later time, or a no."""

    id: str
    status: str
    reason: str | None
    certified_slo_s: float | None
    price: Decimal | None
    job_id: str | None
    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def read(cls, raw: Raw) -> ExpressAnswer:
        return cls(
            id=raw["id"],
            status=raw["status"],
            reason=raw["reason"],
            certified_slo_s=raw["certified_slo_s"],
            price=_usd(raw["price"]),
            job_id=raw["job_id"],
            raw=raw,
        )
