"""How rows become tokens: one layout for the market, which counts, and the node, which trains.

An example is one sequence, of a preference two; a row is one example, or several of a conversation.
A sequence is a list of runs: tokens, and whether the loss counts them. Chat rows stand in the
model's own template; other rows between what its tokenizer puts before a text and the token that
ends one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Protocol

from workers.protocol.job_spec import DataFormat
from workers.protocol.record_messages import list_call_names, list_tool_names, write_messages
from workers.protocol.record_types import CHAT_ROLES, Row, Segment

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


class TemplateError(ValueError):
    """The model's chat template cannot lay out a conversation; the text says what to do."""


def describe_refusal(error: Exception) -> str:
    """The message for an owner when a template refuses a conversation with an error."""
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
        """What ends a text: an EOS token, or nothing."""
        ...

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Tokens of each text, without special ones around it."""
        ...

    def encode_whole(self, texts: list[str]) -> list[list[int]]:
        """Tokens of each text with the model's special tokens around it."""
        ...

    def render(self, messages: list[dict[str, Any]], *, tools: Any, generation: bool) -> str:
        """A conversation in the model's chat template, open for an answer with ``generation``.

        Parameters
        ----------
        messages
            As ``write_messages`` writes them.
        tools
            A list of functions that the model may call, or ``None``.
        """
        ...


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
    laid_out = [(tokens, train) for tokens, train in runs if tokens]
    if laid_out and laid_out[0][1]:
        # Nothing comes before the first token to predict it from.
        tokens = laid_out[0][0]
        laid_out[0:1] = [(tokens[:1], False), (tokens[1:], True)]
    return laid_out


#: What no answer begins with.
_OTHER_ANSWER = "\x02"
#: Of what a model is asked with: enough to find it again before the answer.
_ENDING_CHARS = 8
#: A stretch of text, and whether the loss counts it.
_Piece = tuple[str, bool]


def _split_row(row: Row, encoder: TextEncoder) -> list[list[list[_Piece]]]:
    """A row's examples, sequence by sequence, in stretches."""
    both = [segments for segments in (row.segments, row.rejected) if segments]
    if row.segments[0].role not in CHAT_ROLES:
        return [[[(part.text, part.train) for part in one if part.text] for one in both]]
    split = [_split_conversation(one, row.tools, encoder) for one in both]
    if len(split) == 1:
        return [[example] for example in split[0]]
    if any(len(examples) != 1 for examples in split):
        raise TemplateError(
            "The model's chat template rewrites earlier messages, so an answer of several "
            "messages cannot be preferred. Keep the last of them in chosen and rejected, and the "
            "others in prompt."
        )
    return [[examples[0] for examples in split]]


def _split_conversation(
    segments: tuple[Segment, ...], tools: str, encoder: TextEncoder
) -> list[list[_Piece]]:
    if segments[0].train:
        raise TemplateError(
            "A conversation begins with an answer and has no question before it. Put a message "
            "with the role system or user first, or give the answer the weight 0."
        )
    messages = write_messages(segments)
    render = partial(encoder.render, tools=json.loads(tools) if tools else None)
    whole = _split_whole(segments, messages, render)
    found = [whole] if whole is not None else _split_by_answer(segments, messages, render)
    _check_tools(segments, tools, found)
    _check_texts(segments, found)
    return found


def _split_whole(
    segments: tuple[Segment, ...], messages: list[dict[str, Any]], render: Callable[..., str]
) -> list[_Piece] | None:
    """One stretch for each message; ``None`` when each does not just follow the ones before."""
    pieces: list[_Piece] = []
    done = ""
    try:
        for index, segment in enumerate(segments):
            steps = [(messages[: index + 1], False, segment.train)]
            if segment.role == "assistant" and index:
                steps.insert(0, (messages[:index], True, False))
            for upto, generation, train in steps:
                text = render(upto, generation=generation)
                if not text.startswith(done):
                    return None
                if len(text) > len(done):
                    pieces.append((text[len(done) :], train))
                done = text
    except TemplateError:
        # Some refuse a conversation that ends with a system message or in the middle.
        return None
    return pieces


def _split_by_answer(
    segments: tuple[Segment, ...], messages: list[dict[str, Any]], render: Callable[..., str]
) -> list[list[_Piece]]:
    """Examples that each end with an answer, as long as what comes before is written alike."""
    examples: list[list[_Piece]] = []
    done = ""
    for index, segment in enumerate(segments):
        if not segment.train:
            continue
        asked, answer = _split_answer(messages[: index + 1], render)
        if not examples or not asked.startswith(done):
            examples.append([])
            done = ""
        examples[-1] += [(asked[len(done) :], False), (answer, True)]
        done = asked + answer
    return [[piece for piece in example if piece[0]] for example in examples]


def _split_answer(messages: list[dict[str, Any]], render: Callable[..., str]) -> tuple[str, str]:
    """What the model is asked with, and what it should write, of a conversation's last message."""
    before = messages[:-1]
    asked, answered = render(before, generation=True), render(messages, generation=False)
    start = _count_same(asked, answered)
    if start < len(asked):
        if start >= len(render(before, generation=False)):
            # It is asked with the beginning of a thought, which is not in this answer.
            asked = asked[:start]
        else:
            start = _find_answer(messages, render, asked=asked, answered=answered)
    if len(answered) == start:
        raise TemplateError(
            "The model's chat template leaves out an answer of a conversation. Use prompt and "
            "completion rows for this model."
        )
    return asked, answered[start:]


def _find_answer(
    messages: list[dict[str, Any]], render: Callable[..., str], *, asked: str, answered: str
) -> int:
    """Where the answer begins when the turns before it are written otherwise once it is there."""
    other = render(
        [*messages[:-1], {"role": "assistant", "content": _OTHER_ANSWER}], generation=False
    )
    ending = asked[-_ENDING_CHARS:]
    start = answered.rfind(ending, 0, _count_same(answered, other))
    if start < 0:
        raise TemplateError(
            "The model's chat template rewrites earlier messages with each answer, so the answers "
            "cannot be separated. Use prompt and completion rows for this model."
        )
    return start + len(ending)


def _count_same(one: str, other: str) -> int:
    """Characters with which both begin."""
    if other.startswith(one):
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _check_tools(segments: tuple[Segment, ...], tools: str, examples: list[list[_Piece]]) -> None:
    """Refuse what a template would leave out without a word."""
    calls = Counter(name for part in segments if part.train for name in list_call_names(part))
    written = "".join(text for example in examples for text, _ in example)
    if not all(name in written for name in [*list_tool_names(tools), *calls]):
        raise TemplateError(
            "The model's chat template has no place for tools and calls. Choose a model that "
            "calls tools, or write the calls as the text of messages."
        )
    learnt = _join_learnt(examples)
    if any(learnt.count(name) < count for name, count in calls.items()):
        raise TemplateError(
            "The model's chat template writes only the first of a message's calls. Give each call "
            "a message of its own, with its answer after it."
        )


def _check_texts(segments: tuple[Segment, ...], examples: list[list[_Piece]]) -> None:
    """Refuse a template that leaves out thoughts, or what is said beside a call as Mistral's."""
    learnt = _join_learnt(examples)
    for part in segments:
        if not part.train:
            continue
        # in the text, thoughts stand between marks that a template may write otherwise
        marked, _, answer = part.text.rpartition(_THOUGHT_END)
        for thought in (part.reasoning, marked.rpartition(_THOUGHT_BEGIN)[2]):
            if _find_last_line(thought) not in learnt:
                raise TemplateError(
                    "The model's chat template leaves out what is thought before an answer. Leave "
                    "reasoning_content and <think> out of the row, or choose a model that writes "
                    "its thoughts."
                )
        if part.calls and _find_last_line(answer) not in learnt:
            raise TemplateError(
                "The model's chat template leaves out the text beside a call. Leave it out of the "
                "row, or put it into a message of its own."
            )


_THOUGHT_BEGIN, _THOUGHT_END = "<think>", "</think>"


def _join_learnt(examples: list[list[_Piece]]) -> str:
    return "".join(text for example in examples for text, trained in example if trained)


def _find_last_line(text: str) -> str:
    """The last line that is not blank; empty where there is none."""
    *_, last = text.strip().splitlines() or [""]
    return last.strip()
