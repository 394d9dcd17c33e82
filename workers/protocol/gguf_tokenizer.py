"""A tokenizer as GGUF stores it: tokens, kinds, merges, and how text is split before them."""

# pyright: basic
# Other programs' JSON and a library without types.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf

from workers.protocol.exports import ExportError

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: Ways to split text by llama.cpp's names for them.
_BY_PATTERN = {_LLAMA3: "llama-bpe", _LLAMA3.replace("{1,3}", ""): "qwen2"}


def add_tokenizer(
    writer: gguf.GGUFWriter,
    *,
    config: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    chat_template: str,
) -> None:
    """Write the tokenizer, with a chat template unless it is empty.

    Raises
    ------
    ExportError
        It is no byte-level BPE that llama.cpp splits alike.
    """
    model = tokenizer.get("model") or {}
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise ExportError(
            "GGUF files are made with byte-level BPE tokenizers, and the base model's is another. "
            "Take the merged weights: llama.cpp's convert_hf_to_gguf.py may know it."
        )
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_name_splitting(tokenizer))
    tokens, kinds = _list_tokens(tokenizer, size=config["vocab_size"])
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(
        [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    )
    _add_special_tokens(writer, config, tokenizer)
    if chat_template:
        writer.add_chat_template(chat_template)


def _name_splitting(tokenizer: Mapping[str, Any]) -> str:
    """What llama.cpp calls the way in which text is split."""
    pre = tokenizer.get("pre_tokenizer") or {}
    parts = pre.get("pretokenizers", [pre])
    kinds = [part.get("type") for part in parts]
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"]:
        found = _BY_PATTERN.get((parts[0].get("pattern") or {}).get("Regex", ""))
        if found is not None:
            return found
    raise ExportError(
        "The base model's tokenizer splits text in a way that GGUF has no name for. Take the "
        "merged weights: llama.cpp's convert_hf_to_gguf.py may know it."
    )


def _list_tokens(
    tokenizer: Mapping[str, Any], *, size: int
) -> tuple[list[str], list[gguf.TokenType]]:
    """All tokens in the order of their numbers; rows of the embedding without one are unused."""
    tokens = [f"[PAD{number}]" for number in range(size)]
    kinds = [gguf.TokenType.UNUSED] * size
    for text, number in tokenizer["model"]["vocab"].items():
        tokens[number], kinds[number] = text, gguf.TokenType.NORMAL
    for added in tokenizer.get("added_tokens") or []:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = (
            gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        )
    return tokens, kinds


def _add_special_tokens(
    writer: gguf.GGUFWriter, config: Mapping[str, Any], tokenizer: Mapping[str, Any]
) -> None:
    adders = {
        "bos_token_id": writer.add_bos_token_id,
        "eos_token_id": writer.add_eos_token_id,
        "pad_token_id": writer.add_pad_token_id,
    }
    for name, add in adders.items():
        number = config.get(name)
        number = number[0] if isinstance(number, list) else number
        if number is not None:
            add(number)
    writer.add_add_bos_token(_begins_with_special(tokenizer.get("post_processor") or {}))


def _begins_with_special(post: Mapping[str, Any]) -> bool:
    """Whether every text gets a token before it."""
    parts = post.get("processors", [post])
    singles = [part["single"] for part in parts if part.get("type") == "TemplateProcessing"]
    return any(single and "SpecialToken" in single[0] for single in singles)
