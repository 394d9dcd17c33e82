"""The process that compiles one schema: ``python -m workers.training.grammar_check``.

The schema comes on the standard input; what is wrong with it goes out as a sentence. What takes
more than the process may have ends it. The library's recursion follows references, so the stack is
bounded as well, far below what the same schema has on a node.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

T = TypeVar("T")

#: Of the library, by its own names. A token takes at most some 10 ms of a core, the states of an
#: answer's lexer some 20 MB.
LIMITS = {
    "max_items_in_row": 5_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 25_000,
    "max_lexer_states": 10_000,
    "max_grammar_size": 100_000,
    "precompute_large_lexemes": False,
}
#: Of this process.
CPU_S, MEMORY_BYTES = 2, 1 << 30
#: What a schema is compiled on here, and on a node: what fits the one does not fill the other.
CHECK_STACK_BYTES, STACK_BYTES = 2 << 20, 32 << 20
_stack_lock = threading.Lock()
#: Spaces between parts of an answer; without a bound a model may write nothing else to its end.
_SPACES = r"[ \n]{1,20}"


def build_grammar(schema: str) -> str:
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _SPACES})


def call_with_stack(stack_bytes: int, work: Callable[[], T]) -> T:
    """Call a function on a thread with a stack of its own; a thread's usual one may be 2 MB."""
    with ThreadPoolExecutor(1, thread_name_prefix="stack") as pool:
        with _stack_lock:
            usual = threading.stack_size(stack_bytes)
            try:
                result = pool.submit(work)
            finally:
                threading.stack_size(usual)
        return result.result()


def main() -> None:
    # Jobs train on the same processors.
    os.nice(19)
    # The hard limit is a second later, so that SIGKILL means somebody else.
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # A crash of the library leaves no file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    schema = sys.stdin.read()
    print(call_with_stack(CHECK_STACK_BYTES, lambda: find_grammar_fault(schema)), end="")


def find_grammar_fault(schema: str) -> str:
    """What is wrong with a schema, also in the first words of its answers; empty: nothing."""
    try:
        grammar = build_grammar(schema)
    except ValueError as error:
        return str(error)
    # A token is a byte here, so that no model's tokenizer is needed.
    tokenizer = LLTokenizer("byte")
    first = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
    first.compute_bitmask()
    for matcher in [first, *(_write_byte(first, byte) for byte in b'{["')]:
        if matcher.is_error():
            return matcher.get_error()
    return ""


def _write_byte(matcher: LLMatcher, byte: int) -> LLMatcher:
    """The matcher after a byte, as far as that may come next."""
    copy = matcher.deep_copy()
    if not copy.is_error() and copy.validate_tokens([byte]) and not copy.is_error():
        copy.consume_token(byte)
        copy.compute_bitmask()
    return copy


if __name__ == "__main__":
    main()
