"""What a bid asks for: checked, every ``auto`` resolved, and the work measured."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from marketplace.auction.bidding.deadlines import find_latest_deadline
from marketplace.common.clock import format_moment
from marketplace.common.errors import UserError
from marketplace.common.money import format_usd, to_micros
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at, slot_starts_at
from workers.protocol import setting_list
from workers.protocol.job_bytes import check_targets, find_adapted
from workers.protocol.job_settings import ALL_LINEAR, SettingError, check_adapter, check_training
from workers.protocol.job_spec import AdapterKind, AdapterSpec, TrainingSpec
from workers.protocol.model_shape import ModelShape
from workers.protocol.pass_bytes import PACK_TOKENS
from workers.protocol.wire import ProtocolError, from_json

AUTO = "auto"
#: A hand slip of three digits is refused before it is held: one million dollars.
PRICE_LIMIT_MICROS = 1_000_000 * 1_000_000
NAME_LIMIT = 64
#: What no name has: controls, and signs that one does not see but that turn or hide others.
_NOT_IN_NAMES = (
    r"\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb"
)
NAME_PATTERN = f"^[^{_NOT_IN_NAMES}]*$"
SEQUENCE_STEP = 64
#: Rows seen over all epochs that an ``auto`` number of epochs aims for.
AUTO_SAMPLES = 1500
#: Learning rate at a batch of 8 on a model of ``AUTO_WIDTH``; scaled with the square root of
#: the batch and of how much narrower the model is, since small models want larger steps.
AUTO_LEARNING_RATE = 2e-4
AUTO_WIDTH = 4096
#: Of a soft prompt: its values are as large as embeddings on every model. Measured on the
#: bundled base: 0.05 to 0.2 end at the lowest loss, a LoRA's rate hardly moves it.
AUTO_PROMPT_LEARNING_RATE = 0.07
AUTO_VIRTUAL_TOKENS = 20
RANK_AUTO = 16
#: Tokens that a step of an ``auto`` batch has at most: one pass of a GPU.
PACK_TOKENS_AUTO = PACK_TOKENS["cuda"]


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Settings a node can train with, and the names of those we chose."""

    adapter: AdapterSpec
    training: TrainingSpec
    resolved: tuple[str, ...]
    #: Of the data set, which the choices depend on.
    rows: int


def resolve_terms(
    *,
    adapter: Mapping[str, Any],
    training: Mapping[str, Any],
    rows: int,
    longest_row_tokens: int,
    sequence_length_limit: int,
    model: ModelShape,
    rank_limit: int | None = None,
) -> ResolvedSettings:
    """Check hyper-parameters and fill in what is ``auto`` or missing.

    Parameters
    ----------
    adapter, training
        Fields of ``AdapterSpec`` and ``TrainingSpec``, each a value or ``"auto"``.
    rows
        Usable rows of the data set.
    model
        The zone's base model.
    rank_limit
        The largest rank that the zone's nodes have memory for, where that is a small one.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``, with the name of the setting.
    """
    asked_adapter = name_settings("adapter", adapter)
    asked_training = name_settings("training", training)
    is_prompt = asked_adapter.get("kind") == AdapterKind.SOFT_PROMPT
    resolved: list[str] = []

    def settle(group: str, asked: dict[str, Any], name: str, value: Any) -> None:
        if asked.get(name, AUTO) in (AUTO, None) and name != "target_modules":
            asked[name] = value
            resolved.append(f"{group}.{name}")

    if is_prompt:
        settle("adapter", asked_adapter, "virtual_tokens", AUTO_VIRTUAL_TOKENS)
        _refuse_lora_settings(asked_adapter)
    else:
        settle("adapter", asked_adapter, "rank", min(RANK_AUTO, rank_limit or RANK_AUTO))
        rank = asked_adapter["rank"]
        settle("adapter", asked_adapter, "alpha", 2.0 * rank if _is_number(rank) else 32.0)
        drops = rows < 1000 and not _sits_on_experts(model, asked_adapter.get("target_modules"))
        settle("adapter", asked_adapter, "dropout", 0.05 if drops else 0.0)
    if asked_adapter.get("target_modules") in (AUTO, ALL_LINEAR):
        # all of them is what a family's default is
        asked_adapter["target_modules"] = None
    settle("training", asked_training, "epochs", min(10, max(2, math.ceil(AUTO_SAMPLES / rows))))
    length = min(max(longest_row_tokens, 1), sequence_length_limit)
    settle("training", asked_training, "batch_size", _auto_batch(rows, length))
    batch = asked_training["batch_size"]
    scale = math.sqrt(batch / 8) if _is_number(batch) and batch > 0 else 1.0
    rate = AUTO_LEARNING_RATE * scale * math.sqrt(AUTO_WIDTH / model.hidden_size)
    if is_prompt:
        rate = AUTO_PROMPT_LEARNING_RATE * scale
    settle("training", asked_training, "learning_rate", float(f"{rate:.3g}"))
    if is_prompt and _is_number(asked_adapter["virtual_tokens"]):
        # Its tokens stand before every row, in the same context.
        sequence_length_limit = max(
            16, sequence_length_limit - int(asked_adapter["virtual_tokens"])
        )
    auto_length = math.ceil(max(longest_row_tokens, 1) / SEQUENCE_STEP) * SEQUENCE_STEP
    settle("training", asked_training, "sequence_length", min(auto_length, sequence_length_limit))
    for group, asked in (("adapter", asked_adapter), ("training", asked_training)):
        for name in [name for name, value in asked.items() if value == AUTO]:
            del asked[name]
            resolved.append(f"{group}.{name}")
    terms = ResolvedSettings(
        adapter=_parse(AdapterSpec, asked_adapter, "adapter"),
        training=_parse(TrainingSpec, asked_training, "training"),
        resolved=tuple(resolved),
        rows=rows,
    )
    _check_settings(terms, model=model, sequence_length_limit=sequence_length_limit)
    return terms


#: Settings of LoRA that a soft prompt has no use for.
LORA_SETTINGS = ("rank", "alpha", "dropout", "target_modules")


def _refuse_lora_settings(asked: dict[str, Any]) -> None:
    """Refuse LoRA's settings of a soft prompt; ``auto`` ones go.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``.
    """
    for name in LORA_SETTINGS:
        if asked.pop(name, AUTO) not in (AUTO, None):
            raise UserError(
                "invalid_hyperparameter",
                f"adapter.{name} belongs to LoRA; a soft prompt has none. Leave it out.",
                param=f"adapter.{name}",
            )


def name_settings(group: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Give the settings of ``adapter`` or ``training`` by their own names.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``: there is no such setting; the sentence names the nearest one.
    """
    try:
        return setting_list.name_settings(group, asked)
    except SettingError as error:
        raise UserError(
            "invalid_hyperparameter", f"{error.sentence}.", param=error.setting
        ) from None


def _is_number(value: Any) -> bool:
    """Whether other settings can follow from it; a whole number may be too large for a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9


def _sits_on_experts(model: ModelShape, targets: Any) -> bool:
    """Whether targets, not checked yet, name experts, beside which there is no dropout."""
    try:
        return any(part.experts > 1 for part in find_adapted(model, tuple(targets or ())))
    except (SettingError, TypeError, AttributeError):
        return False


def _auto_batch(rows: int, length: int) -> int:
    """A power of two near a thirtieth of the rows, 4 to 32, which one pass of a GPU holds."""
    of_rows = 2 ** round(math.log2(rows / 30)) if rows > 30 else 4
    of_pass = 2 ** int(math.log2(max(1, PACK_TOKENS_AUTO // length)))
    return min(32, max(4, min(of_rows, of_pass)))


def _parse(kind: type, asked: Mapping[str, Any], group: str) -> Any:
    try:
        return from_json(kind, dict(asked))
    except ProtocolError as error:
        text = str(error).replace(kind.__name__, group)
        # It begins with the path of the value that is wrong.
        param = text.partition(" ")[0]
        raise UserError(
            "invalid_hyperparameter", f"{text}. Give a valid value or 'auto'.", param=param
        ) from None


def _check_settings(
    terms: ResolvedSettings, *, model: ModelShape, sequence_length_limit: int
) -> None:
    """The ranges of ``workers.protocol.job_settings``, in which a node checks once more.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``.
    """
    adapter = terms.adapter
    if adapter.kind is AdapterKind.SOFT_PROMPT and model.encoder:
        raise UserError(
            "invalid_hyperparameter",
            "The zone's base model is an encoder, which learns no soft prompt. Use 'lora'.",
            param="adapter.kind",
        )
    try:
        check_adapter(adapter, on_sale=True)
        check_targets(model, adapter)
        check_training(terms.training, on_sale=True, sequence_length_limit=sequence_length_limit)
    except SettingError as error:
        raise _refuse_setting(error.setting, error.sentence) from None


def _refuse_setting(param: str, sentence: str) -> UserError:
    return UserError("invalid_hyperparameter", f"{sentence} or 'auto'.", param=param)


def parse_price(price: Decimal | str, *, param: str = "price") -> int:
    """A bid in micro-dollars from what was typed or sent.

    Raises
    ------
    UserError
        ``invalid_price``: not a number, not above zero, too many decimals or too large.
    """
    try:
        price_micros = to_micros(price, param=param)
    except UserError as error:
        raise UserError("invalid_price", error.message, param=param) from None
    check_price_micros(price_micros, param=param)
    return price_micros


def check_price_micros(price_micros: int, *, param: str = "price") -> None:
    """The same limits for an amount that is in micro-dollars already."""
    if price_micros <= 0:
        raise UserError("invalid_price", "The price must be above zero.", param=param)
    if price_micros > PRICE_LIMIT_MICROS:
        raise UserError(
            "invalid_price",
            f"The price may be at most {format_usd(PRICE_LIMIT_MICROS)}.",
            param=param,
        )


def check_name(name: str) -> str:
    """The job's name, without spaces around it.

    Raises
    ------
    UserError
        ``invalid_name``: empty, too long or with signs that nobody sees.
    """
    name = name.strip()
    if not 1 <= len(name) <= NAME_LIMIT or re.search(f"[{_NOT_IN_NAMES}]", name):
        raise UserError(
            "invalid_name",
            f"Give the job a name of 1 to {NAME_LIMIT} printable characters.",
            param="name",
        )
    return name


def name_after(source: str) -> str:
    """A job's name after that of its data."""
    return re.sub(f"[{_NOT_IN_NAMES}]", " ", source)[:NAME_LIMIT].strip() or "job"


def check_deadline(deadline_at: datetime, *, zone: Zone, now: datetime) -> None:
    """Refuse a deadline that has passed, is too near for one slot, or lies beyond the horizon.

    Raises
    ------
    UserError
        ``invalid_deadline``, with the earliest or latest that can be had.
    """
    if deadline_at.tzinfo is None:
        raise UserError(
            "invalid_deadline",
            "The deadline needs a time zone, such as 2026-11-21T06:00:00Z.",
            param="deadline",
        )
    if deadline_at <= now:
        raise UserError(
            "invalid_deadline",
            f"The deadline {format_moment(deadline_at)} is in the past; "
            f"give one after {format_moment(now, up=True)}.",
            param="deadline",
        )
    horizon_ends_at = find_latest_deadline(zone, now=now)
    if deadline_at > horizon_ends_at:
        raise UserError(
            "invalid_deadline",
            f"The deadline is beyond what is on sale now; give one until "
            f"{format_moment(horizon_ends_at)}.",
            param="deadline",
            extra={"latest_deadline_at": horizon_ends_at.isoformat()},
        )
    first_end_at = slot_starts_at(zone, slot_at(zone, now) + 2)
    if deadline_at < first_end_at:
        raise UserError(
            "invalid_deadline",
            f"The deadline leaves no whole slot of {zone.slot_s:g} s; give one from "
            f"{format_moment(first_end_at, up=True)} on.",
            param="deadline",
            extra={"earliest_deadline_at": first_end_at.isoformat()},
        )
