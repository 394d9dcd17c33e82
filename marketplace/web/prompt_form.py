"""The fields of prompt tuning, on the bid page and in the express lane."""

from __future__ import annotations

from typing import Any

from django import forms

from workers.protocol.job_settings import INIT_TEXT_CHARS_MAX
from workers.protocol.job_spec import AdapterKind

AUTO = "auto"


class HyperField(forms.CharField):
    """A number, or ``auto``; left to the services to judge."""

    def __init__(self, *, label: str, **kwargs: Any) -> None:
        widget = forms.TextInput(attrs={"class": "field num", "autocomplete": "off"})
        super().__init__(label=label, required=False, max_length=24, widget=widget, **kwargs)

    def clean(self, value: Any) -> Any:
        text = super().clean(value).strip().lower()
        if text in ("", AUTO):
            return AUTO
        try:
            number = float(text.replace(",", "."))
        except ValueError:
            raise forms.ValidationError("Give a number, or auto.") from None
        return int(number) if number.is_integer() else number


class PromptTuningForm(forms.Form):
    """What a form that can ask for a tuned prompt has; to inherit from."""

    initial_prompt = forms.ChoiceField(
        label="Initial prompt",
        required=False,
        choices=[("lookup", "Best known prompt"), ("text", "Your words"), ("random", "Random")],
        widget=forms.Select(attrs={"class": "field"}),
    )
    init_text = forms.CharField(
        label="Words to start from",
        required=False,
        max_length=INIT_TEXT_CHARS_MAX,
        widget=forms.TextInput(attrs={"class": "field", "autocomplete": "off"}),
    )
    virtual_tokens = HyperField(label="Virtual tokens")
    target_loss = HyperField(label="Stop at a held-out loss of")

    def clean_init_text(self) -> str:
        text = self.cleaned_data["init_text"].strip()
        if self.cleaned_data.get("initial_prompt") == "text" and not text:
            raise forms.ValidationError("Write some, or choose another initial prompt.")
        return text

    @property
    def soft_prompt(self) -> dict[str, Any]:
        """The adapter as the services read it."""
        data = self.cleaned_data
        start = data.get("initial_prompt")
        return {
            "kind": str(AdapterKind.SOFT_PROMPT),
            "virtual_tokens": data.get("virtual_tokens", AUTO),
            # Pages show the words for this choice alone.
            "init_text": data.get("init_text", "") if start == "text" else "",
            "looks_up": start == "lookup",
        }
