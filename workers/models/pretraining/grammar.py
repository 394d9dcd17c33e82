"""Sentences of everyday English without end, from the grammar in ``everyday.txt``.

Templates alone make a model that is sure of a few hundred sentences and wrong about all others.
The grammar puts a thousand common words where they may stand, so that a model learns which
words may follow instead of which one does.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from random import Random

from workers.models.pretraining.open_words import draw_code, draw_firm, draw_good, draw_name
from workers.models.pretraining.words import DAYS, MONTHS, PLACES

_GRAMMAR = Path(__file__).parent / "everyday.txt"
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeio])")


@cache
def read_grammar() -> dict[str, tuple[str, ...]]:
    """The alternatives of each rule."""
    rules: dict[str, str] = {}
    name = ""
    for line in _GRAMMAR.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith(" "):
            rules[name] += line
        else:
            name, _, rest = line.partition(":")
            rules[name] = rest
    return {
        rule: tuple(part for text in alternatives.split("|") if (part := text.strip()))
        for rule, alternatives in rules.items()
    }


def draw_values(random: Random) -> dict[str, str]:
    """Words that stay the same in all of one text: people, goods, a firm, a day, numbers."""
    return {
        **{key: draw_name(random) for key in ("who", "me", "other", "third")},
        **{key: draw_good(random) for key in ("p", "q")},
        **{key: str(random.randint(2, 40)) for key in ("n", "m", "k")},
        "firm": draw_firm(random),
        "d": random.choice(DAYS),
        "month": random.choice(MONTHS),
        "place": random.choice(PLACES),
        "c": draw_code(random),
    }


def draw_text(random: Random, rule: str, values: dict[str, str]) -> str:
    """One text of a rule, with ``values`` where the rules name them."""
    text = _ARTICLE.sub(r"\1n ", _expand(random, rule, values))
    return re.sub(r"(^|[.!?] )([a-z])", lambda match: match[1] + match[2].upper(), text)


def draw_phrase(random: Random, rule: str, values: dict[str, str]) -> str:
    """The same, beginning as the rule does: to stand inside a sentence."""
    return _ARTICLE.sub(r"\1n ", _expand(random, rule, values))


def _expand(random: Random, rule: str, values: dict[str, str]) -> str:
    if rule in values:
        return values[rule]
    chosen = random.choice(read_grammar()[rule])
    return _SLOT.sub(lambda match: _expand(random, match[1], values), chosen)
