"""What a model reads of a question: the same tokens for the market, which counts, and the node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from workers.protocol.generation import ChatTurn
from workers.protocol.record_messages import write_messages
from workers.protocol.record_types import Segment
from workers.protocol.token_layout import TextEncoder


class Prompted(Protocol):
    """``Question`` and whatever else is asked as one is."""

    @property
    def turns(self) -> tuple[ChatTurn, ...]: ...
    @property
    def prompt(self) -> str: ...
    @property
    def tools(self) -> str: ...
    @property
    def opening(self) -> str: ...


def encode_prompt(encoder: TextEncoder, asked: Prompted) -> Sequence[int]:
    """The tokens that an answer comes after.

    Raises
    ------
    TemplateError
        The model's chat template does not take such a conversation.
    """
    if not asked.turns:
        return [*encoder.prefix, *encoder.encode([asked.prompt])[0]]
    segments = [
        Segment(turn.role, turn.content, False, turn.calls, call_id=turn.call_id, name=turn.name)
        for turn in asked.turns
    ]
    tools = json.loads(asked.tools) if asked.tools else None
    text = encoder.render(write_messages(segments), tools=tools, generation=True)
    return encoder.encode([text + asked.opening])[0]
