"""A conversation in a model's own template, cut into what is asked and what is learnt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from workers.protocol.record_messages import list_call_names, list_tool_names, write_messages
from workers.protocol.record_types import Segment

#: What no answer begins with.
_OTHER_ANSWER = "\x02"
#: Of what a model is asked with: enough to find it again before the answer.
_ENDING_CHARS = 8
#: A stretch of text, and whether the loss counts it.
Piece = tuple[str, bool]
#: Stands for the token that ends a text.
END: Piece = ("", True)


class TemplateError(ValueError):
    """The model's chat template cannot lay out a conversation; the text says what to do."""


def split_conversation(
    segments: tuple[Segment, ...],
    tools: str,
    render_one: Callable[..., str],
    *,
    stops: Collection[str],
) -> list[list[Piece]]:
    """The examples of a conversation, in stretches; ``END`` where the template ends no answer.

    Parameters
    ----------
    render_one
        ``TextEncoder.render``.
    stops
        ``TextEncoder.stops``.

    Raises
    ------
    TemplateError
        As ``lay_out_rows``.
    """
    if segments[0].train:
        raise TemplateError(
            "A conversation begins with an answer and has no question before it. Put a message "
            "with the role system or user first, or give the answer the weight 0."
        )
    messages = write_messages(segments)
    render = partial(render_one, tools=json.loads(tools) if tools else None)
    whole = _split_whole(segments, messages, render)
    found = [whole] if whole is not None else _split_by_answer(segments, messages, render)
    written = _find_end(render)
    if written is not None and stops and not any(stop in written for stop in stops):
        if not written.strip() or not all(one[-1][1] for one in found):
            # An end would stand in the prompts of later answers: each is an example of its own.
            found = _split_by_answer(segments, messages, render, apart=True)
        found = [[*one, END] for one in found]
    _check_tools(segments, tools, found)
    _check_texts(segments, found)
    return found


def _find_end(render: Callable[..., str]) -> str | None:
    """What the template writes after an answer; nothing, as GLM-4's, or what stops no model."""
    turns = [{"role": role, "content": _OTHER_ANSWER} for role in ("user", "assistant")]
    try:
        return render(turns, generation=False).rpartition(_OTHER_ANSWER)[2]
    except TemplateError:
        return None


def _split_whole(
    segments: tuple[Segment, ...], messages: list[dict[str, Any]], render: Callable[..., str]
) -> list[Piece] | None:
    """One stretch for each message; ``None`` when each does not just follow the ones before."""
    pieces: list[Piece] = []
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
    segments: tuple[Segment, ...],
    messages: list[dict[str, Any]],
    render: Callable[..., str],
    *,
    apart: bool = False,
) -> list[list[Piece]]:
    """Examples that each end with an answer, as long as what comes before is written alike.

    Parameters
    ----------
    apart
        Each answer has one of its own.
    """
    examples: list[list[Piece]] = []
    done = ""
    for index, segment in enumerate(segments):
        if not segment.train:
            continue
        asked, answer = _split_answer(messages[: index + 1], render)
        if apart or not examples or not asked.startswith(done):
            examples.append([])
            done = ""
        examples[-1] += [(asked[len(done) :], False), (answer, True)]
        done = asked + answer
    return [[piece for piece in example if piece[0]] for example in examples]


def _split_answer(messages: list[dict[str, Any]], render: Callable[..., str]) -> tuple[str, str]:
    """What the model is asked with, and what it should write, of a conversation's last message."""
    before, thought = messages[:-1], _find_thought(messages[-1])
    asked, answered = render(before, generation=True), render(messages, generation=False)
    if thought and is_thought_closed(asked):
        asked = render(before, generation=True, thinks=True)
    start = _count_same(asked, answered)
    if start < len(asked):
        plain = len(render(before, generation=False))
        if start >= plain:
            return asked, _follow(asked[plain:], answered[plain:], thought)
        start = _find_answer(messages, render, asked=asked, answered=answered)
    if len(answered) == start:
        raise TemplateError(
            "The model's chat template leaves out an answer of a conversation. Use prompt and "
            "completion rows for this model."
        )
    return asked, answered[start:]


def is_thought_closed(prompt: str) -> bool:
    """Whether a model that is asked so is not to think."""
    return prompt.rstrip().endswith(_THOUGHT_END)


def _follow(prompt: str, answered: str, thought: str) -> str:
    """What is to be written after a prompt that opens a thought, or opens and closes one.

    A model is served after just that prompt, whatever the template makes of a finished answer: a
    thought that is open is written to its end, and one that is closed is written no more.
    """
    header, begin, inside = prompt.partition(_THOUGHT_BEGIN)
    if not begin or not answered.startswith(header):
        raise TemplateError(
            "The model's chat template asks with words that its answers do not begin with. Use "
            "prompt and completion rows for this model."
        )
    answer = answered[len(header) :]
    if answer.startswith(begin):
        answer = answer[len(begin) :]
        if _THOUGHT_END in inside:
            return answer.partition(_THOUGHT_END)[2].lstrip("\n")
        return answer.removeprefix(inside)
    if _THOUGHT_END in inside:
        return answer
    end = "\n" if thought and not thought.endswith("\n") else ""
    answer = answer.removeprefix(_THOUGHT_END).lstrip("\n")
    return f"{thought or chr(10)}{end}{_THOUGHT_END}\n\n{answer}"


def has_thought(part: Segment) -> bool:
    """Whether something is thought before an answer is written."""
    return bool(_find_thought({"content": part.text, "reasoning_content": part.reasoning}).strip())


def _find_thought(message: dict[str, Any]) -> str:
    """What is thought before an answer, in a field of its own or in its text."""
    marked, _, _ = str(message["content"]).rpartition(_THOUGHT_END)
    found = message.get("reasoning_content") or marked.rpartition(_THOUGHT_BEGIN)[2]
    return str(found).lstrip("\n")


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


def _check_tools(segments: tuple[Segment, ...], tools: str, examples: list[list[Piece]]) -> None:
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


def _check_texts(segments: tuple[Segment, ...], examples: list[list[Piece]]) -> None:
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


def _join_learnt(examples: list[list[Piece]]) -> str:
    return "".join(text for example in examples for text, trained in example if trained)


def _find_last_line(text: str) -> str:
    """The last line that is not blank; empty where there is none."""
    *_, last = text.strip().splitlines() or [""]
    return last.strip()
