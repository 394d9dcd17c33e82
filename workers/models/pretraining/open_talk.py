"""Conversations whose answers are open: any of many sentences would do.

Letters in the tone of a shop that no other letter has, sentences to go on with, words to write
about, sums told in many ways. What stays the same from letter to letter is what a reply must
copy from the message: the name, the thing, the number.
"""

from __future__ import annotations

from random import Random

from workers.models.pretraining.grammar import draw_phrase, draw_text, draw_values
from workers.models.pretraining.letters import MATTERS, sign
from workers.models.pretraining.words import GROUPS

#: What a user says and what the assistant answers.
Exchange = tuple[str, str]


def open_conversation(random: Random) -> list[dict[str, str]]:
    """A letter from a shop, or one to three open exchanges."""
    messages: list[dict[str, str]] = []
    if random.random() < 0.55:
        system, *exchanges = draw_open_letter(random)
    else:
        system = None
        makers = random.choices((writing, grouping), weights=(5, 1), k=random.choice((1, 1, 2, 3)))
        exchanges = [maker(random) for maker in makers]
    if system is not None:
        messages.append({"role": "system", "content": system})
    for question, answer in exchanges:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return messages


def draw_open_letter(random: Random) -> tuple[str | None, Exchange]:
    """A customer's message with its answer, and a system line or ``None``."""
    values = draw_values(random)
    questions, answers = random.choice(MATTERS)
    asked = random.choice(questions).format(**values)
    if random.random() < 0.5:
        asked = draw_text(random, "ask", values)
    parts = [_open(random, values)]
    for _ in range(random.choice((1, 1, 1, 2))):
        if random.random() < 0.3:
            parts.append(random.choice(answers).format(**values))
        else:
            parts.append(draw_text(random, "sentence", values))
    if random.random() < 0.85:
        parts.append(draw_text(random, "bye", values))
    system = draw_text(random, "role", values) if random.random() < 0.4 else None
    return system, (sign(random, asked, values["who"]), " ".join(parts))


def _open(random: Random, values: dict[str, str]) -> str:
    """How a reply begins: the customer's name, and mostly a kind word."""
    who, greeting = values["who"], draw_phrase(random, "greeting", values)
    opening = random.choice((f"{greeting} {who}", f"{greeting} {who}", f"{greeting}, {who}", who))
    end = random.choice((",", ",", ".", "!"))
    if random.random() < 0.2:
        return f"{opening}{end}"
    kind = draw_phrase(random, "kind", values) + random.choice(".!")
    return f"{opening}, {kind}" if end == "," else f"{opening}{end} {kind[0].upper()}{kind[1:]}"


def writing(random: Random) -> Exchange:
    """A request for words that the user does not give."""
    values = draw_values(random)
    text = draw_everyday(random, most=3)
    words = text.split()
    half = random.randint(1, len(words) - 1)
    answer = " ".join(draw_text(random, "sentence", values) for _ in range(random.randint(1, 2)))
    kind = draw_text(random, "kind", values)
    note = f"{values['who']}, {kind}! {draw_text(random, 'bye', values)}"
    return random.choice(
        (
            (f"Go on: {' '.join(words[:half])}", " ".join(words[half:])),
            (f"Write about {values['who']} and the {values['p']}.", answer),
            (f"Write a few words to {values['who']}.", note),
            (f"Write a sentence with the word {words[-1].strip('.?!')}.", text),
            (f"Correct this: {text.lower()}", text),
            ("What do you think?", text),
            (draw_text(random, "ask", values), answer),
            (draw_text(random, "ask", values), answer),
        )
    )


def draw_everyday(random: Random, *, most: int = 5) -> str:
    """Some sentences about the same people and things."""
    values = draw_values(random)
    return " ".join(draw_text(random, "sentence", values) for _ in range(random.randint(1, most)))


def grouping(random: Random) -> Exchange:
    """Sums of groups and single things, the groups counted first."""
    group, size, thing = random.choice(GROUPS)
    left, right = random.randint(2, 30), random.randint(1, 9) * max(1, size // 10)
    whole = left * size
    be = random.choice(("are", "make", "have", "is"))
    asked = random.choice(
        (
            f"Add the two {random.choice(('amounts', 'numbers', 'times', 'weights'))}.\n\n"
            f"{left} {group} + {right} {thing}",
            f"How many {thing} are {left} {group} and {right} {thing}?",
            f"{left} {group} + {right} {thing} = ?",
        )
    )
    total = f"{whole} + {right} = {whole + right}"
    return asked, random.choice(
        (
            f"{left} {group} {be} {whole} {thing}, and {total}.",
            f"{total}, so it is {whole + right} {thing}.",
            f"{left} * {size} = {whole}. With {right} {thing} more: {whole + right} {thing}.",
        )
    )
