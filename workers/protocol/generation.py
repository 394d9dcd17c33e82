"""Text that a node writes for an owner: the questions that it takes, and what it sends back.

A node asks for questions over HTTPS as it asks for plans, writes all that it has together, and
sends every few tokens. A question that the node does not finish ends at ``expires_at``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.protocol.job_spec import BaseModelRef
from workers.protocol.probes import ProbeAdapter
from workers.protocol.reports import Fault

#: POST under the node's bearer token, answered when there is a question or the wait is over.
PATH_NEXT_QUESTIONS = "/internal/v1/questions/next"
#: POST under the node's bearer token: what was written since.
PATH_WRITTEN = "/internal/v1/questions/written"

#: Questions that a node answers at a time.
QUESTIONS_MAX = 8
#: Of an answer whose prompt is longer than the model reads.
TOO_LONG = "too_long"
#: Of an answer whose schema cannot be followed.
BAD_SCHEMA = "schema"
#: Tokens that a question makes likelier or less likely, and how far.
BIASED_MAX, BIAS_MAX = 300, 100.0
#: Stop texts of a question, most characters of one, and likeliest tokens given for a place.
STOPS_MAX, STOP_CHARS_MAX, TOP_TOKENS_MAX = 4, 200, 20


@dataclass(frozen=True, slots=True)
class ChatTurn:
    role: str
    content: str
    #: Of an assistant's turn: the functions that it calls, as JSON.
    calls: str = ""
    #: Of a tool's turn: the call that it answers, and the tool.
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class TokenBias:
    token: int
    #: Added to the token's logit.
    bias: float


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be written, with which adapter, and how."""

    token: str
    #: Unix seconds.
    expires_at: float
    base_model: BaseModelRef
    #: ``None``: the base model alone.
    adapter: ProbeAdapter | None = None
    #: A conversation to be answered; empty: ``prompt`` is continued.
    turns: tuple[ChatTurn, ...] = ()
    prompt: str = ""
    #: Functions that the model may call, as JSON.
    tools: str = ""
    #: What a conversation's answer begins with; it is read, and not written again.
    opening: str = ""
    max_tokens: int = 256
    #: 0: always the likeliest token.
    temperature: float = 0.0
    #: The likeliest tokens that together have this probability are drawn from.
    top_p: float = 1.0
    #: As many of the likeliest tokens are drawn from; 0: all.
    top_k: int = 0
    #: Taken from the logit of a token for each time that it was written, and once if it was.
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[TokenBias, ...] = ()
    seed: int = 0
    stop: tuple[str, ...] = ()
    #: A JSON schema, as text, that the whole answer follows; empty: any text.
    schema: str = ""
    #: How many of the likeliest tokens are given for each place; ``None``: no probabilities.
    top_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class NextQuestionsRequest:
    node_id: str
    #: Questions that the node can take.
    room: int
    #: Seconds the market may take to answer; it waits no longer than it wants to.
    wait_s: float = 0.0
    #: The node reads ``schema``, ``tools``, ``opening`` and a turn's ``calls``. One of an earlier
    #: release would leave them out and answer something else.
    takes_forms: bool = False


@dataclass(frozen=True, slots=True)
class NextQuestionsReply:
    questions: tuple[Question, ...] = ()


@dataclass(frozen=True, slots=True)
class LikelyToken:
    text: str
    #: Natural logarithm of the probability.
    logprob: float


@dataclass(frozen=True, slots=True)
class WrittenToken:
    text: str
    logprob: float
    #: The likeliest first.
    likeliest: tuple[LikelyToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """What was written of one answer since the last time."""

    token: str
    text: str = ""
    #: With probabilities where they were asked for.
    tokens: tuple[WrittenToken, ...] = ()
    #: Of the whole answer so far.
    prompt_tokens: int = 0
    answer_tokens: int = 0
    #: ``stop`` or ``length`` once it is whole; ``error``, ``TOO_LONG`` or ``BAD_SCHEMA``: it cannot
    #: be written.
    finish: str = ""
    #: A sentence, where it cannot be written, and whose fault it is.
    reason: str = ""
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class WrittenReport:
    items: tuple[Written, ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class WrittenReply:
    #: Tokens of questions that need no more answer.
    ended: tuple[str, ...] = ()
