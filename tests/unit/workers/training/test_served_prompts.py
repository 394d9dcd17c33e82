"""What is trained before an answer is what a server asks the model with, token for token."""

from __future__ import annotations

import io
import json
import os
from itertools import groupby, product
from pathlib import Path

import pytest

from tests.unit.workers.training.test_chat_templates import (
    CLOSES_THOUGHTS,
    CUTS_THOUGHTS,
    ENDLESS,
    HARMONY,
    MAY_THINK,
    MISTRAL,
    OPENS_THOUGHTS,
    QWEN,
    SAID,
    TOOL,
    TOOL_ROW,
    TURNS,
    encode,
)
from workers.protocol.conversation_split import has_thought, is_thought_closed
from workers.protocol.record_messages import write_messages
from workers.protocol.records import read_rows
from workers.protocol.token_layout import TemplateError, lay_out_rows

#: More templates, a file each: published ones are not ours to keep here.
FOLDER = os.environ.get("FINETENDER_CHAT_TEMPLATES")
TEMPLATES = {
    "closes": CLOSES_THOUGHTS,
    "cuts": CUTS_THOUGHTS,
    "endless": ENDLESS,
    "harmony": HARMONY,
    "may think": MAY_THINK,
    "mistral": MISTRAL,
    "opens": OPENS_THOUGHTS,
    "plain": None,
    "qwen3": QWEN,
} | {path.stem: path.read_text() for path in sorted(Path(FOLDER or "/none").glob("*.jinja"))}
ASKED, UNLEARNT = TURNS[3], {**TURNS[2], "weight": 0}
CONVERSATIONS = {
    "one": [TURNS[1], TURNS[2]],
    "system": TURNS[:3],
    "two": SAID[1:],
    "system and two": SAID,
    "three": [*SAID[1:], TURNS[1], TURNS[2]],
    "one is not learnt": [TURNS[1], UNLEARNT, *SAID[3:]],
    "the last is not learnt": [*SAID[1:], TURNS[1], UNLEARNT],
    "lines": [ASKED, {"role": "assistant", "content": "Blue.\n\n- a\n- b\n\tc é 😀"}],
    "thought": TURNS[3:],
    "thought at last": TURNS[1:],
    "thought in the text": [
        ASKED,
        {"role": "assistant", "content": "<think>\nIt is day.\n</think>\n\nBlue"},
    ],
    "tools": TOOL_ROW["messages"][1:],
}
#: Described, which gpt-oss' template insists on.
TOOLS = [{"type": "function", "function": TOOL["function"] | {"description": "Looks outside."}}]
#: Which conversations a template has no place for.
REFUSED = {
    "closes": {"thought", "thought at last", "tools"},
    "cuts": {"tools"},
    "endless": {"thought", "thought at last", "tools"},
    "harmony": set(),
    "may think": {"tools"},
    "mistral": {"thought", "thought at last"},
    "opens": {"tools"},
    "plain": {"thought", "thought at last"},
    "qwen3": set(),
}


def list_prompts(template: str | None, kind: str) -> tuple[list[list[int]], list[list[int]]]:
    """What is trained before each answer of a conversation, and what is served.

    Raises
    ------
    TemplateError
        The template has no place for it.
    """
    encoder = encode(template)
    row = {"messages": CONVERSATIONS[kind]}
    tools = TOOLS if kind == "tools" else None
    [parsed] = read_rows(io.BytesIO(json.dumps(row | ({"tools": tools} if tools else {})).encode()))
    [examples] = lay_out_rows([parsed], encoder)
    prompts: list[list[int]] = []
    for [sequence] in examples:
        tokens: list[int] = []
        for is_learnt, runs in groupby(sequence, key=lambda run: run[1]):
            if is_learnt:
                prompts.append(list(tokens))
            tokens += [token for run, _ in runs for token in run]
    messages = write_messages(parsed.segments)
    served: list[list[int]] = []
    for place, part in enumerate(parsed.segments):
        if part.train:
            asked = encoder.render(messages[:place], tools=tools, generation=True)
            if has_thought(part) and is_thought_closed(asked):
                asked = encoder.render(messages[:place], tools=tools, generation=True, thinks=True)
            served += encoder.encode([asked])
    return prompts, served


@pytest.mark.parametrize(("name", "kind"), list(product(TEMPLATES, CONVERSATIONS)))
def test_each_answer_is_learnt_after_the_prompt_that_it_is_served_after(name, kind):
    try:
        prompts, served = list_prompts(TEMPLATES[name], kind)
    except TemplateError:
        assert kind in REFUSED.get(name, CONVERSATIONS)
        return
    assert kind not in REFUSED.get(name, ())
    assert prompts == served
