"""How rows become tokens: one layout for the market, which counts, and the node, which trains.

An example is one sequence, of a preference two; a row is one example, or several of a conversation.
A sequence is a list of runs: tokens, and whether the loss counts them. Chat rows stand in the
model's own template; other rows between what its tokenizer puts before a text and the token that
ends one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Protocol

from workers.protocol.conversation_split import (
    Piece,
    TemplateError,
    has_thought,
    is_thought_closed,
    split_conversation,
)
from workers.protocol.job_spec import DataFormat
from workers.protocol.record_types import CHAT_ROLES, Row

#: For models without a chat template. Calls and tools are written as JSON.
PLAIN_CHAT_TEMPLATE = (
    "{% if tools %}{{ '### Tools:\n' + tools | tojson + '\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '### ' + message['role'].capitalize() + ':\n' + message['content'] + '\n' }}"
    "{% if message['tool_calls'] %}"
    "{{ message['tool_calls'] | map(attribute='function') | list | tojson + '\n' }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Assistant:\n' }}{% endif %}"
)

#: What templates that print the date print, in training, validation and answers alike. Otherwise
#: a job that goes on the next day, or a check of its steps, would see other tokens. Llama's own
#: template takes this date where it has no clock.
TEMPLATE_DATE = datetime(2024, 7, 26)

#: Of ``strftime``; one that is no other's beginning.
_DATE_CODES = (*("-d", "-m", "-H", "-I", "-M", "-S", "-j"), *"aAbBcdDeFHIjmMpSTuUVwWxXyY")

#: By which templates are asked to let the model think: Qwen's and most others', DeepSeek's.
_THINKING_ARGUMENT = re.compile(r"(?<![.\w'\"])(?:enable_)?thinking\b(?![\w'\"])")

#: Tokens, and whether the loss counts them.
TokenRun = tuple[Sequence[int], bool]


def pin_template_date(template: str) -> str:
    """The template with a ``strftime_now`` of its own, which knows ``TEMPLATE_DATE`` only.

    A macro, since ``transformers`` hands no function on to a template.
    """
    if "strftime_now" not in template:
        return template
    texts = {f"%{code}": TEMPLATE_DATE.strftime(f"%{code}") for code in _DATE_CODES}
    replaced = "".join(f"|replace('{code}', '{text}')" for code, text in texts.items())
    # The newline belongs to the block, as templates are rendered.
    return (
        f"{{%- macro strftime_now(form) -%}}{{{{ form{replaced} }}}}{{%- endmacro %}}\n{template}"
    )


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """How a model writes conversations; some models have a template of its own for tools."""

    default: str
    with_tools: str

    def choose(self, tools: Any) -> str:
        return self.with_tools if tools else self.default

    def list_arguments(self, *, thinks: bool) -> dict[str, bool]:
        """What the templates are to be given so that the model thinks, where they know how."""
        texts = self.default + self.with_tools
        return {found: True for found in _THINKING_ARGUMENT.findall(texts) if thinks}


def choose_chat_templates(
    found: str | Mapping[str, str] | None, *, adds_bos: bool
) -> ChatTemplates:
    """The model's templates, or a plain one that begins as the tokenizer begins a text.

    Those that print the date print ``TEMPLATE_DATE``.

    Parameters
    ----------
    found
        The model's one template, or its templates by name: ``default``, and ``tool_use`` for
        conversations with tools.
    adds_bos
        Whether the tokenizer puts the model's BOS token before a text by itself.
    """
    named = {"default": found} if isinstance(found, str) else dict(found or {})
    default = named.get("default") or ("{{ bos_token }}" if adds_bos else "") + PLAIN_CHAT_TEMPLATE
    with_tools = named.get("tool_use") or default
    return ChatTemplates(pin_template_date(default), pin_template_date(with_tools))


def describe_refusal(error: Exception) -> str:
    """The message for an owner when a template refuses a conversation with an error."""
    if isinstance(error, TypeError) and '"dict"' in str(error):
        # DeepSeek-V3's, in whose place its own servers put another
        return (
            "The model's chat template takes the arguments of calls as text only, and servers give "
            "it objects. Write calls as the text of messages, or choose another model for tools."
        )
    return (
        f"The model's chat template refuses a conversation: {str(error).rstrip('. !')}. Check the "
        "order of the roles."
    )


class TextEncoder(Protocol):
    """A base model's tokenizer and chat template."""

    @property
    def prefix(self) -> Sequence[int]:
        """What the tokenizer puts before a text by itself: a BOS token, or nothing."""
        ...

    @property
    def suffix(self) -> Sequence[int]:
        """What ends a text: the tokenizer's EOS token or the model's, or nothing."""
        ...

    @property
    def stops(self) -> Collection[str]:
        """Texts of the tokens after which a model that is served writes no more."""
        ...

    @property
    def templates(self) -> ChatTemplates: ...

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Tokens of each text, without special ones around it."""
        ...

    def encode_whole(self, texts: list[str]) -> list[list[int]]:
        """Tokens of each text with the model's special tokens around it."""
        ...

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: Any,
        generation: bool,
        thinks: bool = False,
    ) -> str:
        """A conversation in the model's chat template, open for an answer with ``generation``.

        Parameters
        ----------
        messages
            As ``write_messages`` writes them.
        tools
            A list of functions that the model may call, or ``None``.
        thinks
            With the arguments by which the model is let think.
        """
        ...


def list_serving_arguments(rows: Sequence[Row], encoder: TextEncoder) -> tuple[str, ...]:
    """Arguments of the template, each true, that prompts of answers with thoughts were given.

    A template that closes thoughts unless it is asked (Qwen3.5's small ones, DeepSeek-V3.1's) is
    asked for answers that have some. None where the default prompts are what was trained after.
    """
    if not any(part.train and has_thought(part) for row in rows for part in row.segments):
        return ()
    turns = [{"role": "user", "content": "?"}]
    try:
        is_closed = is_thought_closed(encoder.render(turns, tools=None, generation=True))
    except TemplateError:
        return ()
    return tuple(encoder.templates.list_arguments(thinks=is_closed))


def lay_out_rows(rows: Sequence[Row], encoder: TextEncoder) -> Iterator[list[list[list[TokenRun]]]]:
    """The examples of each row: sequences of runs, two of a preference and else one.

    A conversation is one example, unless the chat template writes earlier turns otherwise once
    later ones are there, as those of reasoning models do: then each stretch that is written alike
    is one, with the answers in it. The first token of a sequence is never trained. Rows of one
    call share one call of the tokenizer.

    Raises
    ------
    TemplateError
        When the chat template refuses a conversation, or leaves out what is to be learnt.
    """
    if rows and rows[0].format is DataFormat.CLASSIFICATION:
        texts = [row.segments[0].text for row in rows]
        for tokens in encoder.encode_whole(texts):
            whole: list[TokenRun] = [(tokens, False)]
            yield [[whole]]
        return
    pieces = [_split_row(row, encoder) for row in rows]
    texts = [
        text for of_row in pieces for example in of_row for of_one in example for text, _ in of_one
    ]
    encoded = iter(encoder.encode(texts) if texts else ())
    for row, of_row in zip(rows, pieces, strict=True):
        yield [
            [
                _lay_out(
                    row,
                    list(zip(islice(encoded, len(of_one)), (t for _, t in of_one), strict=True)),
                    encoder,
                )
                for of_one in example
            ]
            for example in of_row
        ]


def _lay_out(row: Row, runs: Sequence[TokenRun], encoder: TextEncoder) -> list[TokenRun]:
    if row.segments[0].role not in CHAT_ROLES:
        runs = [(encoder.prefix, False), *runs, (encoder.suffix, row.segments[-1].train)]
    elif runs and not runs[-1][0]:
        runs = [*runs[:-1], (encoder.suffix, True)]
    laid_out = [(tokens, train) for tokens, train in runs if tokens]
    if laid_out and laid_out[0][1]:
        # Nothing comes before the first token to predict it from.
        tokens = laid_out[0][0]
        laid_out[0:1] = [(tokens[:1], False), (tokens[1:], True)]
    return laid_out


def _split_row(row: Row, encoder: TextEncoder) -> list[list[list[Piece]]]:
    """A row's examples, sequence by sequence, in stretches."""
    both = [segments for segments in (row.segments, row.rejected) if segments]
    if row.segments[0].role not in CHAT_ROLES:
        return [[[(part.text, part.train) for part in one if part.text] for one in both]]
    split = [
        split_conversation(one, row.tools, encoder.render, stops=encoder.stops) for one in both
    ]
    if len(split) == 1:
        return [[example] for example in split[0]]
    if any(len(examples) != 1 for examples in split):
        raise TemplateError(
            "The model's chat template rewrites earlier messages, so an answer of several "
            "messages cannot be preferred. Keep the last of them in chosen and rejected, and the "
            "others in prompt."
        )
    return [[examples[0] for examples in split]]
