"""What a job is: the one value that the market stores with a bid and with its job."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.protocol.job_spec import AdapterSpec, TrainingSpec
from workers.protocol.starts import Resumption, Start


@dataclass(frozen=True, slots=True)
class PreparationWish:
    """What is to be done with the data first, and who may see them for it."""

    #: Kinds of vendor that the owner lets see the data.
    kinds: tuple[str, ...] = ("automatic",)
    #: What a column of the file holds, by its name in lower case: ``prompt``, ``completion``,
    #: ``system``, ``context``, ``input``, ``history``, ``messages``, ``text``, ``label`` or
    #: ``left_out``.
    roles: dict[str, str] = field(default_factory=dict[str, str])
    drop_duplicates: bool = True
    mask_personal_data: bool = False
    #: Regions, by ISO 3166 code, whose phone numbers are found without a country's prefix; none
    #: are all.
    phone_regions: tuple[str, ...] = ()
    #: Languages to keep; none keeps all.
    languages: tuple[str, ...] = ()
    #: Share of rows set aside, none of which shares a prompt with the training rows.
    validation_share: float = 0.1
    #: Skills that a vendor must have; none asks for no particular one.
    skills: tuple[str, ...] = ()
    #: What people or an outside vendor are to do, in the owner's words.
    instructions: str = ""
    #: Rows whose answer the owner knows, as JSON objects, by their place in the file from 1. They
    #: are mixed into the work, and no vendor is told which they are.
    gold: dict[str, str] = field(default_factory=dict[str, str])
    #: Seconds that the owner has to refuse a delivery of people or of an outside vendor. With none,
    #: the rule accepts it.
    review_s: int = 0
    #: Id of the confirmed plan whose rows the job is sold for; empty: there is none.
    plan: str = ""


@dataclass(frozen=True, slots=True)
class JobTerms:
    """A job as it is sold: checked, and every ``auto`` resolved."""

    adapter: AdapterSpec
    training: TrainingSpec
    #: Id of the data set that it trains on.
    dataset: str
    #: Id of the data set whose rows are held out; ``None``: a share of the first one's.
    validation: str | None = None
    #: ``None``: from fresh weights.
    start: Start | None = None
    #: ``None``: the data are trained on as they are.
    preparation: PreparationWish | None = None
    #: Nodes of verified providers only.
    verified_only: bool = False
    #: The owner's own pairs of texts, which decide nothing.
    metadata: dict[str, str] | None = None
    #: The paused job that it goes on with; ``None``: it does all of its steps itself.
    resumes: Resumption | None = None
