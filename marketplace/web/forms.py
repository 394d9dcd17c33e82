"""What people type, before the services judge it."""

from __future__ import annotations

import json
import re
import uuid
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django import forms
from django.utils import timezone

from marketplace.accounts.models import Organisation, Scope
from marketplace.auction.bidding.start_from import CONTINUED, WARM
from marketplace.common.errors import UserError
from marketplace.common.money import to_micros
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at, slot_starts_at
from marketplace.jobs.models import Dataset, Job
from marketplace.jobs.selectors import list_continuable_jobs, list_datasets
from marketplace.vendors.models import VendorKind
from marketplace.vendors.wishes import GOLD_CHARS_MAX, GOLD_ROWS_MAX, INSTRUCTIONS_CHARS_MAX
from marketplace.web.expert_form import CHOICES, EXPERT, NUMBERS, ExpertForm
from marketplace.web.latest_choice import LatestChoiceField, offer_rows
from marketplace.web.prompt_form import AUTO, HyperField, PromptTuningForm
from marketplace.webhooks.models import MessageForm
from marketplace.webhooks.news import NOTICE_KINDS
from marketplace.webhooks.outbox import EVENT_TYPES
from workers.protocol.job_spec import AdapterKind

#: Form field by the services' name of it.
PARAMS = {
    "price": "price",
    "deadline": "deadline",
    "deadline_at": "deadline",
    "name": "name",
    "file": "file",
    "dataset_id": "dataset",
    "validation_dataset_id": "validation",
    "zone": "zone",
    "model": "model",
}
TRAINING = ("epochs", "batch_size", "learning_rate", "early_stopping")
LORA = ("rank", "alpha", "dropout")
HYPER = (*TRAINING, *LORA, "virtual_tokens", "target_loss")
METHODS = {
    AdapterKind.LORA: "LoRA: low-rank matrices beside the model's own",
    AdapterKind.SOFT_PROMPT: "Prompt tuning: a few learnt tokens before every row",
}
#: Seconds that an owner may take to look at a delivery, in words.
REVIEWS = [
    (0, "The rule accepts a delivery at once"),
    (300, "I look at it within 5 minutes"),
    (3600, "I look at it within an hour"),
    (24 * 3600, "I look at it within a day"),
]
_DECIMAL_COMMA = re.compile(r"\d+,\d{1,2}")
_INPUT_FORMAT = "%Y-%m-%dT%H:%M:%S"


def _build_deadline_field() -> forms.DateTimeField:
    return forms.DateTimeField(
        input_formats=[_INPUT_FORMAT, "%Y-%m-%dT%H:%M"],
        widget=forms.DateTimeInput(
            format=_INPUT_FORMAT, attrs={"type": "datetime-local", "class": "field num", "step": 1}
        ),
        error_messages={"invalid": "Give a day and a time, such as 2026-11-20T18:00."},
    )


class BidForm(PromptTuningForm, ExpertForm):
    name = forms.CharField(
        max_length=64, widget=forms.TextInput(attrs={"class": "field", "autocomplete": "off"})
    )
    zone = forms.ModelChoiceField(
        label="Model", queryset=Zone.objects.none(), to_field_name="name", empty_label=None
    )
    dataset = LatestChoiceField(
        label="Data set",
        queryset=Dataset.objects.none(),
        required=False,
        empty_label="Choose an uploaded data set",
        widget=forms.Select(attrs={"class": "field"}),
    )
    validation = LatestChoiceField(
        label="Validation data",
        queryset=Dataset.objects.none(),
        required=False,
        empty_label="A share of these rows",
        widget=forms.Select(attrs={"class": "field"}),
        help_text="Rows to measure the job by, and not to train on. None may stand in both.",
    )
    file = forms.FileField(
        label="Upload a file",
        required=False,
        allow_empty_file=True,
        widget=forms.FileInput(
            attrs={"class": "field", "accept": ".jsonl,.json,.csv,.tsv,.txt,text/*"}
        ),
    )
    method = forms.ChoiceField(
        label="Method",
        required=False,
        choices=[(str(kind), words) for kind, words in METHODS.items()],
        widget=forms.Select(attrs={"class": "field"}),
    )
    epochs = HyperField(label="Epochs")
    rank = HyperField(label="LoRA rank")
    alpha = HyperField(label="LoRA alpha")
    dropout = HyperField(label="Dropout")
    learning_rate = HyperField(label="Learning rate")
    batch_size = HyperField(label="Batch size")
    early_stopping = HyperField(label="Stop early after (checks)")
    model = LatestChoiceField(
        label="Begin with",
        queryset=Job.objects.none(),
        required=False,
        empty_label="The base model",
        widget=forms.Select(attrs={"class": "field"}),
    )
    deadline = _build_deadline_field()
    price = forms.CharField(
        label="Most it is worth to you",
        required=False,
        max_length=24,
        widget=forms.TextInput(
            attrs={"inputmode": "decimal", "autocomplete": "off", "aria-describedby": "price_help"}
        ),
    )
    prepare = forms.BooleanField(label="Have the data prepared first", required=False)
    #: The confirmed plan by which the data are prepared.
    plan = forms.CharField(max_length=40, required=False, widget=forms.HiddenInput)
    mask = forms.BooleanField(label="Replace personal data (not names)", required=False)
    people = forms.BooleanField(label="People may see the data", required=False)
    outside = forms.BooleanField(label="Outside systems may get the data", required=False)
    instructions = forms.CharField(
        label="What people or outside systems are to do",
        required=False,
        max_length=INSTRUCTIONS_CHARS_MAX,
        widget=forms.Textarea(attrs={"class": "field", "rows": 3}),
    )
    gold = forms.CharField(
        label="Rows whose answer you know",
        required=False,
        max_length=GOLD_ROWS_MAX * GOLD_CHARS_MAX,
        widget=forms.Textarea(attrs={"class": "field mono", "rows": 3}),
    )
    review = forms.TypedChoiceField(
        label="Before training starts",
        coerce=int,
        required=False,
        choices=REVIEWS,
        widget=forms.Select(attrs={"class": "field"}),
    )
    fresh = forms.BooleanField(label="No warm start", required=False)
    verified_only = forms.BooleanField(label="Verified providers only", required=False)
    #: The warm start that the page shows.
    offer = forms.CharField(max_length=40, required=False, widget=forms.HiddenInput)
    #: Names this submission, so that a double click is one bid.
    key = forms.CharField(max_length=64, widget=forms.HiddenInput)

    def __init__(self, *args: Any, organisation: Organisation, zones: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["zone"].queryset = zones  # type: ignore[attr-defined]
        for name in ("dataset", "validation"):
            offer_rows(self, name, list_datasets(organisation))
        offer_rows(self, "model", list_continuable_jobs(organisation))

    def clean_price(self) -> str:
        """``9,50`` is nine and a half; ``1,000`` could be two amounts and is refused as it is."""
        text = self.cleaned_data["price"].strip().removeprefix("$").strip()
        return text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text

    @property
    def asks_price(self) -> bool:
        """The limit stays with who bids, and the wallet pays: a card is asked for an amount."""
        return self.data.get("asks_price") == "1" and self.data.get("pay") != "card"

    @property
    def is_prompt_tuning(self) -> bool:
        return self.data.get("method") == AdapterKind.SOFT_PROMPT

    @property
    def adapter(self) -> dict[str, Any]:
        if self.is_prompt_tuning:
            return self.soft_prompt
        return {name: self.cleaned_data.get(name, AUTO) for name in LORA} | self.expert_lora

    @property
    def training(self) -> dict[str, Any]:
        data = self.cleaned_data
        asked = {name: data.get(name, AUTO) for name in TRAINING} | self.expert_training
        target = data.get("target_loss", AUTO)
        return asked if target == AUTO else asked | {"target_loss": target}

    @property
    def preparation(self) -> dict[str, Any] | None:
        """What a vendor is to do, and which kinds may see the data."""
        data = self.cleaned_data
        if not data.get("prepare"):
            return None
        if data.get("plan"):
            return {"plan": data["plan"], **self.consent}
        return {"mask_personal_data": data.get("mask", False), **self.consent}

    def ask_for_preparation(self) -> None:
        """Choose what a file needs that nothing can train on as it is."""
        self.data = self.data.copy()
        self.data["prepare"] = "on"
        self.full_clean()

    def clean_gold(self) -> dict[str, str]:
        """Rows one a line, each with the ``row_id`` that is its place in the file."""
        found: dict[str, str] = {}
        for line in filter(str.strip, self.cleaned_data["gold"].splitlines()):
            try:
                row = json.loads(line)
                found[str(int(row.pop("row_id")))] = json.dumps(row, ensure_ascii=False)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise forms.ValidationError(
                    'Write each row as a JSON object with its row_id: {"row_id": 3, ...}.'
                ) from None
        return found

    @property
    def consent(self) -> dict[str, Any]:
        """Who may see the data, and their instructions; the automatic vendor always may."""
        data = self.cleaned_data
        others = {VendorKind.HUMAN: data.get("people"), VendorKind.OUTSIDE: data.get("outside")}
        kinds = [kind.value for kind, may_see in others.items() if may_see]
        if not kinds:
            return {"kinds": [VendorKind.AUTOMATIC.value]}
        instructions = data.get("instructions", "")
        # A program reads no instructions.
        automatic = [] if instructions else [VendorKind.AUTOMATIC.value]
        return {
            "kinds": [*automatic, *kinds],
            "instructions": instructions,
            "gold": data.get("gold") or {},
            "review_s": data.get("review") or 0,
        }

    @property
    def continues(self) -> str:
        """The chosen adapter as the services name a model; empty: none."""
        job = self.cleaned_data.get("model")
        return "" if job is None else f"{CONTINUED}{job.pk}"

    @property
    def is_warm(self) -> bool:
        """Whether a warm start is wanted where there is one."""
        return not self.cleaned_data.get("fresh", False)

    @property
    def begins_with(self) -> str:
        """What the bid is to begin with: the chosen adapter, or the warm start that was shown."""
        offer = self.cleaned_data.get("offer", "")
        return self.continues or (f"{WARM}{offer}" if offer and self.is_warm else "")

    @property
    def has_hyper_errors(self) -> bool:
        return any(name in self.errors for name in (*HYPER, *EXPERT, "model"))

    @property
    def has_expert_settings(self) -> bool:
        """Whether one of the settings that most people leave alone is chosen, or wrong."""
        wrong = any(name in self.errors for name in EXPERT)
        return wrong or bool(self.expert_training or self.expert_lora)

    def find_field(self, error: UserError) -> str | None:
        """The field that a service's refusal is about."""
        param = (error.param or "").rpartition(".")[2]
        return PARAMS.get(param, param if param in (*HYPER, *EXPERT) else None)

    def refuse(self, error: UserError) -> None:
        """Put a service's refusal beside the field that it is about."""
        self.add_error(self.find_field(error), error.message)


def get_bid_defaults(*, zone: Zone | None, now: datetime) -> dict[str, Any]:
    """A form to start from; every setting is left to the market."""
    defaults: dict[str, Any] = dict.fromkeys((*HYPER, *NUMBERS, *CHOICES, "target_modules"), AUTO)
    defaults |= {"method": str(AdapterKind.LORA), "initial_prompt": "lookup"}
    defaults |= {"key": uuid.uuid4().hex, "name": f"job-{timezone.localtime(now):%m%d-%H%M}"}
    if zone is not None:
        slots = max(2, zone.horizon_slots // 2)
        defaults |= {
            "zone": zone.name,
            "deadline": slot_starts_at(zone, slot_at(zone, now) + slots),
        }
    return defaults


class ResumeForm(forms.Form):
    """A bid for the rest of a paused job."""

    price = forms.CharField(
        label="Most the rest is worth to you",
        max_length=24,
        widget=forms.TextInput(
            attrs={"class": "field num", "inputmode": "decimal", "autocomplete": "off"}
        ),
    )
    deadline = _build_deadline_field()
    #: As of ``BidForm``.
    key = forms.CharField(max_length=64, widget=forms.HiddenInput)

    def refuse(self, error: UserError) -> None:
        """Put a service's refusal beside the field that it is about."""
        field = PARAMS.get(error.param or "", "")
        self.add_error(field if field in self.fields else None, error.message)


class UploadForm(forms.Form):
    file = forms.FileField(allow_empty_file=True, widget=forms.FileInput(attrs={"class": "field"}))


#: What a new key may do only if its maker says so: replace other keys, say who is a member or paid.
_CHOSEN_SCOPES = (Scope.KEYS_WRITE, Scope.MEMBERS_WRITE, Scope.PAYOUTS_WRITE)
DEFAULT_SCOPES = [scope for scope in Scope.values if scope not in _CHOSEN_SCOPES]


class ApiKeyForm(forms.Form):
    name = forms.CharField(
        max_length=80, widget=forms.TextInput(attrs={"class": "field", "autocomplete": "off"})
    )
    scopes = forms.MultipleChoiceField(
        choices=Scope.choices, widget=forms.CheckboxSelectMultiple, initial=DEFAULT_SCOPES
    )
    days = forms.TypedChoiceField(
        label="Expires",
        coerce=int,
        choices=[(30, "in 30 days"), (90, "in 90 days"), (365, "in a year"), (0, "never")],
        initial=90,
        widget=forms.Select(attrs={"class": "field"}),
    )
    bid_usd = forms.DecimalField(
        label="Bids by itself, in dollars",
        help_text="What a job is worth where a request of OpenAI's client says nothing.",
        required=False,
        min_value=Decimal("0.000001"),
        max_value=1_000_000,
        max_digits=13,
        decimal_places=6,
        widget=forms.NumberInput(attrs={"class": "field", "step": "any"}),
    )
    bid_hours = forms.FloatField(
        label="with a deadline in hours",
        help_text="Empty: the latest deadline on sale.",
        required=False,
        min_value=0.01,
        max_value=24 * 365,
        widget=forms.NumberInput(attrs={"class": "field", "step": "any"}),
    )

    @property
    def bid_price_micros(self) -> int | None:
        usd = self.cleaned_data["bid_usd"]
        return None if usd is None else to_micros(usd)

    @property
    def bid_deadline_s(self) -> int | None:
        hours = self.cleaned_data["bid_hours"]
        return None if hours is None else round(3600 * hours)

    def expires_at(self, now: datetime) -> datetime | None:
        days = self.cleaned_data["days"]
        return now + timedelta(days=days) if days else None


class WebhookForm(forms.Form):
    url = forms.CharField(
        label="Address",
        max_length=500,
        widget=forms.URLInput(attrs={"class": "field", "placeholder": "https://"}),
    )
    form = forms.ChoiceField(
        label="Who reads it",
        choices=MessageForm.choices,
        initial=MessageForm.STANDARD,
        required=False,
        widget=forms.Select(attrs={"class": "field"}),
        help_text="A channel gets sentences, of: " + ", ".join(NOTICE_KINDS) + ".",
    )
    events = forms.MultipleChoiceField(
        choices=[(kind, kind) for kind in dict.fromkeys((*NOTICE_KINDS, *EVENT_TYPES))],
        initial=["job.succeeded", "job.failed"],
        widget=forms.CheckboxSelectMultiple,
    )
