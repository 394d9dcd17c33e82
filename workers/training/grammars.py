"""Answers that follow a JSON schema: of each token, which may come next.

``llguidance`` does the work on the CPU: an Earley parser over a lexer of derivatives, whose states
are made as they are needed. A schema is an asker's input on a provider's machine. It is compiled in
a process that may take little of it first; ``LIMITS`` bound what each token costs afterwards.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Collection
from functools import cached_property, lru_cache
from typing import Any

import llguidance.hf
import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from workers.protocol.answer_schema import describe_schema_fault
from workers.training.faults import SchemaFault, SystemFault
from workers.training.grammar_check import (
    LIMITS,
    STACK_BYTES,
    build_grammar,
    call_with_stack,
)

#: Seconds after which a check that has not ended is given up; its processor time is bounded too.
_CHECK_S = 20.0
_CHECKED_MAX = 64
_CANNOT = "The schema cannot be followed: "


class AnswerGrammar:
    """Where one answer stands in its schema.

    Parameters
    ----------
    stops
        Tokens that end an answer, possible where it is whole.
    """

    def __init__(self, matcher: LLMatcher, *, stops: Collection[int], vocabulary: int) -> None:
        self._matcher = matcher
        self._stops = [token for token in stops if token < vocabulary]
        self._vocabulary = vocabulary

    @property
    def is_whole(self) -> bool:
        """Whether the answer follows its schema and nothing can come after it."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def find_forbidden(self) -> torch.Tensor:
        """Tokens that may not come next, ``bool[V]``.

        Raises
        ------
        SchemaFault
            The schema takes too much work here, or the model has no token for what it wants.
        """
        allowed = np.frombuffer(self._matcher.compute_logit_bias(), dtype=np.uint8)
        self._check()
        forbidden_V = allowed[: self._vocabulary] == 0
        forbidden_V[self._stops] = not self._matcher.is_accepting()
        if forbidden_V.all():
            raise SchemaFault("The model has no token that the schema allows here.")
        return torch.from_numpy(forbidden_V)

    def write(self, token: int) -> None:
        """Go on after a token; raises as ``find_forbidden``."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise SchemaFault(_CANNOT + _shorten(self._matcher.get_error()))


class Grammars:
    """Makes grammars for answers of one base. Thread-safe.

    Parameters
    ----------
    vocabulary : int
        Logits of a place, which may be more than the tokenizer has tokens.
    """

    def __init__(self, tokenizer: Any, *, stops: Collection[int], vocabulary: int) -> None:
        self._hf_tokenizer = tokenizer
        self._stops = stops
        self._vocabulary = vocabulary

    def build(self, schema: str) -> AnswerGrammar:
        """The grammar of a new answer.

        Raises
        ------
        SchemaFault
            The schema is none or takes too much to follow, or this base's tokenizer is none that
            grammars are made for.
        SystemFault
            The schema could not be checked.
        """
        if fault := _find_fault(schema):
            raise SchemaFault(fault)
        matcher = call_with_stack(STACK_BYTES, lambda: self._compile(schema))
        return AnswerGrammar(matcher, stops=self._stops, vocabulary=self._vocabulary)

    def _compile(self, schema: str) -> LLMatcher:
        limits = LLParserLimits(**LIMITS)
        return LLMatcher(self._tokenizer, build_grammar(schema), log_level=0, limits=limits)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The base's tokens as the library reads them; made once, which takes about a second."""
        try:
            return llguidance.hf.from_tokenizer(
                self._hf_tokenizer,
                n_vocab=max(self._vocabulary, len(self._hf_tokenizer)),
                slices=LLTokenizer.json_slices(),
            )
        # The library raises whatever it finds wrong with a tokenizer.
        except Exception as error:
            raise SchemaFault(
                f"This base model's tokenizer takes no schemas: {_shorten(str(error))}"
            ) from error


@lru_cache(maxsize=_CHECKED_MAX)
def _find_fault(schema: str) -> str:
    """What is wrong with a schema, found in a process of its own; empty: nothing.

    Raises
    ------
    SchemaFault
        The process took too long, of which this machine's load may be the reason.
    SystemFault
        It could not be started, or was ended by others.
    """
    try:
        fault = describe_schema_fault(json.loads(schema))
    except (ValueError, RecursionError):
        fault = "The schema is no JSON."
    if fault is not None:
        return fault
    command = (sys.executable, "-m", "workers.training.grammar_check")
    try:
        done = subprocess.run(
            command, input=schema, capture_output=True, text=True, timeout=_CHECK_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SchemaFault("The schema takes too long to compile. Make it simpler.") from None
    except OSError as error:
        raise SystemFault("The node could not check the schema. Ask again.") from error
    if done.returncode == -signal.SIGKILL:
        # By the machine, for want of memory: that says nothing of the schema.
        raise SystemFault("The node could not check the schema. Ask again.")
    if done.returncode != 0:
        return "The schema takes too much to compile. Make it simpler."
    return done.stdout and _CANNOT + _shorten(done.stdout)


def _shorten(said: str) -> str:
    """What the library says to a reader, without its own state, which stands after it."""
    said = said.partition("<state>")[0].strip()
    return "no text fits it." if said.startswith("NoExtension") else said[:300]
