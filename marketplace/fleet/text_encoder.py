"""A model's tokenizer and chat template, as nodes use them; the market never loads the model.

Imports nothing of Django: the process that reads uploads counts with it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marketplace.common.errors import UserError
from workers.protocol.token_layout import TemplateError, choose_chat_templates, describe_refusal

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Special tokens that a template may name.
_NAMED_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Where a model's tokenizer is on this machine."""

    #: ``tokenizer.json``.
    tokenizer: Path
    #: ``tokenizer_config.json``, which names special tokens.
    config: Path | None = None
    #: ``chat_template.jinja``.
    chat_template: Path | None = None
    #: ``additional_chat_templates/tool_use.jinja``.
    tool_template: Path | None = None
    #: ``generation_config.json``, which names the tokens that end an answer.
    generation: Path | None = None
    #: ``config.json``, which does where there is no such file.
    model: Path | None = None


class ModelTextEncoder:
    """``token_layout.TextEncoder`` of a base model, from its tokenizer's files."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        config: Mapping[str, Any],
        chat_template: str | Mapping[str, str] | None,
        stop_tokens: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._special = {
            name: text for name in _NAMED_TOKENS if (text := _read_token(config.get(name)))
        }
        eos = self._find_id("eos_token")
        named = [*([] if eos is None else [eos]), *sorted(stop_tokens)]
        texts = ((token, tokenizer.id_to_token(token)) for token in named)
        ends = {token: text for token, text in texts if text is not None}
        self.suffix: list[int] = list(ends)[:1]
        self.stops = tuple(ends.values())
        self.prefix: list[int] = self._find_prefix(config, eos)
        self.templates = choose_chat_templates(
            chat_template, adds_bos=self.prefix == [self._find_id("bos_token")]
        )
        #: What conversations without tools are written by.
        self.default_template = self.templates.default
        # As the tokenizers below: 2 MB.
        from marketplace.fleet.chat_environment import build_environment

        environment = build_environment()
        texts = {self.templates.default, self.templates.with_tools}
        self._compiled = {text: environment.from_string(text) for text in texts}

    def encode(self, texts: list[str]) -> list[list[int]]:
        found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode_whole(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: Any,
        generation: bool,
        thinks: bool = False,
    ) -> str:
        if not messages and not generation:
            return ""
        try:
            return self._compiled[self.templates.choose(tools)].render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=generation,
                **self._special,
                **self.templates.list_arguments(thinks=thinks),
            )
        # A template is a program of the model's maker and may refuse in any way.
        except Exception as error:
            raise TemplateError(describe_refusal(error)) from error

    def _find_id(self, name: str) -> int | None:
        text = self._special.get(name)
        return None if text is None else self._tokenizer.token_to_id(text)

    def _find_prefix(self, config: Mapping[str, Any], eos: int | None) -> list[int]:
        if "add_bos_token" in config:
            bos = self._find_id("bos_token")
            return [bos] if config["add_bos_token"] and bos is not None else []
        ids = self._tokenizer.encode("").ids
        return ids[:-1] if ids and ids[-1] in (eos, self._find_id("sep_token")) else ids


@lru_cache(maxsize=8)
def load_text_encoder(files: TokenizerFiles) -> ModelTextEncoder:
    """The encoder that a model's files describe.

    Raises
    ------
    UserError
        ``unknown_tokenizer``: they cannot be read.
    """
    # It takes 5 MB of a process, and most of the market's processes read no text.
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(files.tokenizer))
        # What a file says of padding and truncation is not for counting.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        config = json.loads(_read_text(files.config) or "{}")
        templates = _find_templates(files, config)
        generation = json.loads(_read_text(files.generation) or _read_text(files.model) or "{}")
        return ModelTextEncoder(
            tokenizer,
            config=config,
            chat_template=templates,
            stop_tokens=_list_stop_tokens(generation),
        )
    # The library raises bare ``Exception`` for whatever is wrong with the file.
    except Exception as error:
        raise UserError(
            "unknown_tokenizer",
            f"The model's tokenizer cannot be read: {error}",
            param="base_model",
        ) from error


def _read_text(path: Path | None) -> str | None:
    return None if path is None else path.read_text(encoding="utf-8")


def _find_templates(files: TokenizerFiles, config: Mapping[str, Any]) -> dict[str, str]:
    """A model's chat templates by name, from files of their own or from its configuration."""
    default = _read_text(files.chat_template)
    if default is not None:
        tool_use = _read_text(files.tool_template)
        return {"default": default} | ({} if tool_use is None else {"tool_use": tool_use})
    found = config.get("chat_template")
    if isinstance(found, list):
        return {one["name"]: one["template"] for one in found}
    return {"default": found} if found else {}


def _list_stop_tokens(config: Mapping[str, Any]) -> list[int]:
    """Of a generation's configuration or a model's; of one that reads images, its text's."""
    named = config.get("eos_token_id", (config.get("text_config") or {}).get("eos_token_id"))
    found = named if isinstance(named, list) else [named]
    return [token for token in found if isinstance(token, int)]


def _read_token(value: Any) -> str | None:
    """A special token, which is a text or an object with one."""
    return value.get("content") if isinstance(value, dict) else value
