"""Names of an adapter's tensors: ours, as in checkpoints, and PEFT's, as in finished files."""

from __future__ import annotations

from collections.abc import Iterable

#: Of the one tensor of a soft prompt.
PROMPT = "prompt_embeddings"
#: DoRA's lengths, beside ``lora_A`` and ``lora_B``.
MAGNITUDE = "lora_magnitude"
#: Before a module's name in the base model.
PEFT_PREFIX = "base_model.model."


def list_peft_names(tensors: Iterable[tuple[str, int]]) -> dict[str, str]:
    """PEFT's names of an adapter's tensors by ours; those of experts have three dimensions.

    Parameters
    ----------
    tensors
        Names and how many dimensions each has.
    """
    listed = list(tensors)
    owners = name_owners({name.rpartition(".")[0] for name, count in listed if count == 3})
    found: dict[str, str] = {}
    for name, _ in listed:
        module, _, part = name.rpartition(".")
        found[name] = _format_peft_name(f"{owners[module]}.{part}" if module in owners else name)
    return found


def _format_peft_name(name: str) -> str:
    if name == PROMPT:
        return PROMPT
    if name.endswith(f".{MAGNITUDE}"):
        return f"{PEFT_PREFIX}{name}_vector"
    if name.startswith("classifier."):
        return f"{PEFT_PREFIX}{name}"
    return f"{PEFT_PREFIX}{name}.weight"


def name_owners(experts: Iterable[str]) -> dict[str, str]:
    """PEFT's names of what holds the matrices of adapted tensors of experts, by these' names.

    PEFT wraps what has several such tensors once for each, the one that the model lists last
    outermost. Experts list ``down_proj`` last, after ``gate_up_proj`` or ``up_proj``.
    """
    owners: dict[str, str] = {}
    within: dict[str, str] = {}
    for name in sorted(experts):
        module = name.rpartition(".")[0]
        owners[name] = within.get(module, module)
        within[module] = f"{owners[name]}.base_layer"
    return owners
