"""Names and ranges of a job's settings: one table for form, API, lane and node.

A market that checks a bid with ``check_adapter`` and ``check_training`` sells nothing that a
node refuses: the node checks with the same functions, only without the narrower limits of a sale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from workers.protocol.job_spec import AdapterKind, AdapterSpec, TrainingSpec

SCHEDULES = ("linear", "cosine", "constant")
PREFERENCE_LOSSES = ("dpo", "orpo")
#: A target that stands for every projection, as in PEFT.
ALL_LINEAR = "all-linear"
#: Names of target modules a job may give, and characters of one.
TARGETS_MAX = 64
TARGET_CHARS_MAX = 200
INIT_TEXT_CHARS_MAX = 2_000
#: Ways in which LoRA's product is used; a soft prompt has none.
LORA_FORMS = ("rslora", "dora")


class SettingError(ValueError):
    """A setting has a value no job can have; the text says which values it can."""

    def __init__(self, setting: str, sentence: str) -> None:
        super().__init__(sentence)
        #: Group and name, such as ``training.epochs``.
        self.setting = setting
        #: Without a full stop.
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The values a number may have, both ends included unless said otherwise."""

    low: float
    high: float
    #: ``high`` itself is not allowed.
    excludes_high: bool = False
    #: Narrower ends at a market's sale.
    sold_low: float | None = None
    sold_high: float | None = None

    def get_ends(self, *, on_sale: bool) -> tuple[float, float]:
        if not on_sale:
            return self.low, self.high
        low = self.low if self.sold_low is None else self.sold_low
        return low, self.high if self.sold_high is None else self.sold_high


TRAINING_RANGES: Mapping[str, NumberRange] = {
    "epochs": NumberRange(1, 1000, sold_high=50),
    "batch_size": NumberRange(1, 4096, sold_high=256),
    "learning_rate": NumberRange(1e-8, 1),
    "warmup_share": NumberRange(0, 1, excludes_high=True),
    "weight_decay": NumberRange(0, 1),
    # 0 switches clipping off
    "max_grad_norm": NumberRange(0, 1e6),
    # a market's zone bounds it from above
    "sequence_length": NumberRange(2, 2**20, sold_low=16),
    "seed": NumberRange(0, 2**31 - 1),
    "validation_share": NumberRange(0, 1, excludes_high=True, sold_high=0.5),
    "eval_every_steps": NumberRange(0, 1_000_000),
    "dpo_beta": NumberRange(1e-6, 100, sold_high=2),
    # 0: no noise
    "neftune_alpha": NumberRange(0, 1000, sold_high=100),
    # 0: no early stopping
    "early_stopping": NumberRange(0, 100),
    # 0: no target
    "target_loss": NumberRange(0, 100),
}
LORA_RANGES: Mapping[str, NumberRange] = {
    "rank": NumberRange(1, 512, sold_high=256),
    "alpha": NumberRange(1e-6, 1e30, sold_low=1e-3, sold_high=4096),
    "dropout": NumberRange(0, 1, excludes_high=True),
    # soft prompts only
    "virtual_tokens": NumberRange(0, 0),
}
SOFT_PROMPT_RANGES: Mapping[str, NumberRange] = {
    "dropout": NumberRange(0, 1, excludes_high=True),
    "virtual_tokens": NumberRange(1, 512),
}


def check_training(
    training: TrainingSpec, *, on_sale: bool = False, sequence_length_limit: int | None = None
) -> None:
    """Refuse settings that no run can have.

    Parameters
    ----------
    on_sale : bool
        Take the narrower limits of a market.
    sequence_length_limit : int, optional
        Longest sequence on sale in the market's zone.

    Raises
    ------
    SettingError
        For the first setting that is wrong.
    """
    for name, allowed in TRAINING_RANGES.items():
        if name == "sequence_length" and sequence_length_limit is not None:
            allowed = replace(allowed, sold_high=sequence_length_limit)
        _check_number(f"training.{name}", getattr(training, name), allowed, on_sale=on_sale)
    if training.schedule not in SCHEDULES:
        raise SettingError("training.schedule", f"training.schedule must be {', '.join(SCHEDULES)}")
    if training.preference_loss not in PREFERENCE_LOSSES:
        raise SettingError(
            "training.preference_loss",
            f"training.preference_loss must be {' or '.join(PREFERENCE_LOSSES)}",
        )


def check_adapter(adapter: AdapterSpec, *, on_sale: bool = False) -> None:
    """Refuse settings that no adapter can have; modules are checked by ``match_modules``.

    Raises
    ------
    SettingError
        For the first setting that is wrong.
    """
    is_lora = adapter.kind is AdapterKind.LORA
    for name, allowed in (LORA_RANGES if is_lora else SOFT_PROMPT_RANGES).items():
        _check_number(f"adapter.{name}", getattr(adapter, name), allowed, on_sale=on_sale)
    if len(adapter.init_text) > INIT_TEXT_CHARS_MAX or not _is_clean(adapter.init_text):
        raise SettingError(
            "adapter.init_text",
            f"adapter.init_text is at most {INIT_TEXT_CHARS_MAX:,} characters, none of them NUL "
            "or half of a pair; give such a text",
        )
    if is_lora and adapter.looks_up:
        raise SettingError(
            "adapter.looks_up",
            "adapter.looks_up belongs to a soft prompt; LoRA looks up nothing; give false",
        )
    for name in LORA_FORMS:
        if not is_lora and getattr(adapter, name):
            raise SettingError(
                f"adapter.{name}",
                f"adapter.{name} belongs to LoRA; a soft prompt has none; give false",
            )
    targets = adapter.target_modules
    if targets is None:
        return
    if not is_lora:
        raise SettingError(
            "adapter.target_modules",
            "adapter.target_modules belongs to LoRA; a soft prompt has none; leave it out",
        )
    if ALL_LINEAR in targets and len(targets) > 1:
        raise SettingError(
            "adapter.target_modules",
            f"adapter.target_modules has {ALL_LINEAR} and others; give it alone",
        )
    if not 1 <= len(targets) <= TARGETS_MAX:
        raise SettingError(
            "adapter.target_modules",
            f"adapter.target_modules names {len(targets)} modules; name 1 to {TARGETS_MAX}",
        )


#: Names under which mixtures have the weights of all experts of a block in one tensor.
_EXPERTS = {"experts", "gate_up_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}
_EXPERTS_STAY = (
    " (experts of this mixture stay frozen: transformers computes them in a way of their own)"
)


def match_modules(
    targets: Iterable[str], names: Iterable[str], experts: Iterable[str] = ()
) -> tuple[str, ...]:
    """Full names of the projections that the targets mean, sorted.

    A target is a projection's full name or the end of it after a dot, or ``all-linear`` for all of
    them, as in PEFT.

    Parameters
    ----------
    names : iterable of str
        Full names of all projections of the base model.
    experts : iterable of str
        Full names of its tensors of experts, which ``all-linear`` does not mean.

    Raises
    ------
    SettingError
        When a target is no projection of the model; the text names those that are.
    """
    projections, tensors = tuple(names), tuple(experts)
    found: set[str] = set()
    for target in targets:
        if target == ALL_LINEAR:
            return tuple(sorted(projections))
        every = (*projections, *tensors)
        hits = [name for name in every if name == target or name.endswith("." + target)]
        if not hits:
            endings = sorted({name.rpartition(".")[2] for name in projections})
            endings += sorted({".".join(name.split(".")[-2:]) for name in tensors})
            is_frozen = not tensors and _EXPERTS.intersection(target.split("."))
            hint = _EXPERTS_STAY if is_frozen else ""
            raise SettingError(
                "adapter.target_modules",
                f"The model has no projection called {_shorten(target)}; "
                f"choose among {', '.join(endings)}{hint}",
            )
        found.update(hits)
    return tuple(sorted(found))


def _check_number(name: str, value: float, allowed: NumberRange, *, on_sale: bool) -> None:
    low, high = allowed.get_ends(on_sale=on_sale)
    excludes_high = allowed.excludes_high and high == allowed.high
    if low <= value and (value < high if excludes_high else value <= high):
        return
    ends = f"at least {low:g} and below {high:g}" if excludes_high else f"from {low:g} to {high:g}"
    if low == high:
        ends = f"of {low:g}"
    raise SettingError(name, f"{name} is {_show(value)}; give a value {ends}")


def _show(value: float) -> str:
    """A number in few characters; whole numbers may be too long to be floats."""
    text = str(value)
    return text if len(text) <= 24 else f"{text[:21]}..."


def _shorten(name: str) -> str:
    return repr(name if len(name) <= TARGET_CHARS_MAX else f"{name[:TARGET_CHARS_MAX]}...")


def _is_clean(text: str) -> bool:
    return "\0" not in text and text.encode("utf-8", "ignore").decode() == text
