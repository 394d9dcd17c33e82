"""The process that compiles one schema: ``python -m workers.training.grammar_check``.

The schema comes on the standard input; what is wrong with it goes out as a sentence. What takes
more than the process may have ends it.
"""

from __future__ import annotations

import resource
import sys

from llguidance import LLMatcher, LLParserLimits

#: Of the library, by its own names. A token takes at most some 10 ms of a core, the states of an
#: answer's lexer some 20 MB.
LIMITS = {
    "max_items_in_row": 1_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 25_000,
    "max_lexer_states": 10_000,
    "max_grammar_size": 100_000,
    "precompute_large_lexemes": False,
}
#: Of this process.
CPU_S, MEMORY_BYTES = 2, 1 << 30
#: Spaces between parts of an answer; without a bound a model may write nothing else to its end.
_SPACES = r"[ \n]{1,20}"


def build_grammar(schema: str) -> str:
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _SPACES})


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # A crash of the library leaves no file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        grammar = build_grammar(sys.stdin.read())
    except ValueError as error:
        print(error, end="")
        return
    print(LLMatcher.validate_grammar(grammar, limits=LLParserLimits(**LIMITS)), end="")


if __name__ == "__main__":
    main()
