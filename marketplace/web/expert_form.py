"""Settings of training that most people leave alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django import forms

from marketplace.web.prompt_form import AUTO, HyperField
from workers.protocol.job_settings import (
    ALL_LINEAR,
    PREFERENCE_LOSSES,
    SCHEDULES,
    TARGET_CHARS_MAX,
    TARGETS_MAX,
)
from workers.protocol.job_spec import AdapterSpec, TrainingSpec

NUMBERS = (
    *("sequence_length", "warmup_share", "weight_decay", "validation_share"),
    *("seed", "neftune_alpha", "dpo_beta"),
)
CHOICES = ("schedule", "preference_loss")
SWITCHES = ("rslora", "dora")
EXPERT = (*NUMBERS, *CHOICES, *SWITCHES, "target_modules")


def _choose(label: str, values: tuple[str, ...], help_text: str = "") -> forms.ChoiceField:
    return forms.ChoiceField(
        label=label,
        required=False,
        choices=[(AUTO, AUTO), *((value, value) for value in values)],
        widget=forms.Select(attrs={"class": "field"}),
        help_text=help_text,
    )


class ExpertForm(forms.Form):
    """What a form that trains LoRA adapters has; to inherit from."""

    sequence_length = HyperField(label="Tokens a row")
    schedule = _choose("Learning rate after the warm-up", SCHEDULES)
    warmup_share = HyperField(label="Warm-up, share of the steps")
    weight_decay = HyperField(label="Weight decay")
    validation_share = HyperField(label="Share of rows held out")
    seed = HyperField(label="Seed")
    neftune_alpha = HyperField(label="NEFTune noise")
    preference_loss = _choose(
        "Loss of preferences", PREFERENCE_LOSSES, "For rows with a chosen and a rejected answer."
    )
    dpo_beta = HyperField(label="Beta of preferences")
    target_modules = forms.CharField(
        label="Target modules",
        required=False,
        max_length=TARGETS_MAX * (TARGET_CHARS_MAX + 2),
        widget=forms.TextInput(attrs={"class": "field mono", "autocomplete": "off"}),
        help_text="Names with commas between, such as q_proj, v_proj; auto takes all of them.",
    )
    rslora = forms.BooleanField(label="rsLoRA: scale by the root of the rank", required=False)
    dora = forms.BooleanField(label="DoRA: learn lengths apart from directions", required=False)

    @property
    def expert_training(self) -> dict[str, Any]:
        """What was chosen of the training's settings, as the services read it."""
        data = self.cleaned_data
        chosen = {name: data.get(name) or AUTO for name in CHOICES}
        chosen |= {name: data.get(name, AUTO) for name in NUMBERS}
        return {name: value for name, value in chosen.items() if value != AUTO}

    @property
    def expert_lora(self) -> dict[str, Any]:
        """What was chosen of the adapter's settings, as the services read it."""
        data = self.cleaned_data
        chosen: dict[str, Any] = {name: True for name in SWITCHES if data.get(name)}
        asked = data.get("target_modules", "").strip()
        if asked and asked.lower() not in (AUTO, ALL_LINEAR):
            names = [name.strip() for name in asked.split(",")]
            chosen["target_modules"] = [name for name in names if name]
        return chosen


def read_expert_settings(
    adapter: Mapping[str, Any], training: Mapping[str, Any], *, resolved: Collection[str]
) -> dict[str, Any]:
    """What an earlier job chose, as the form shows it; what it left alone is left out.

    Parameters
    ----------
    resolved
        Settings that were chosen for it, such as ``training.sequence_length``.
    """
    usual = {name: getattr(TrainingSpec(), name) for name in (*NUMBERS, *CHOICES)}
    usual |= {name: getattr(AdapterSpec(), name) for name in (*SWITCHES, "target_modules")}
    asked = {**training, **adapter}
    chosen = {
        name: _shorten(asked[name])
        for name in EXPERT
        if asked.get(name) not in (None, usual[name]) and f"training.{name}" not in resolved
    }
    if "target_modules" in chosen:
        chosen["target_modules"] = ", ".join(chosen["target_modules"])
    return chosen


def _shorten(value: Any) -> Any:
    """A whole number without its fraction, as people type it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
