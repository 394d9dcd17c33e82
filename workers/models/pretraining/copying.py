"""Exchanges whose answers hold words of the question: repeat, find, quote, fill in."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from workers.models.pretraining.open_words import (
    COLOURS,
    GOODS,
    draw_address,
    draw_code,
    draw_good,
    draw_invented,
    draw_name,
)
from workers.models.pretraining.words import DAYS, MONTHS, PLACES

#: What a user says and what the assistant answers.
Exchange = tuple[str, str]


def draw_copying(random: Random) -> Exchange:
    """One exchange of any of the kinds below."""
    return random.choice(_MAKERS)(random)


def _draw_words(random: Random, count: int) -> list[str]:
    kinds = (draw_invented, draw_name, draw_code, lambda r: r.choice(GOODS))
    draw = random.choice(kinds)
    return [draw(random) for _ in range(count)]


def echo(random: Random) -> Exchange:
    word = " ".join(_draw_words(random, random.choice((1, 1, 2, 3, 4, 6))))
    return random.choice(
        (
            (f"Repeat: {word}", word),
            (f"Say {word}.", f"{word}."),
            (f"Write {word} twice.", f"{word} {word}"),
            (f"Copy this line: {word}", word),
            (f'Put "{word}" in quotes.', f'"{word}"'),
            (f"Please say {word} and nothing else.", word),
        )
    )


def lists(random: Random) -> Exchange:
    words = _draw_words(random, random.randint(2, 5))
    text = ", ".join(words)
    place = random.randrange(len(words))
    ordinal = ("first", "second", "third", "fourth", "fifth")[place]
    return random.choice(
        (
            (f"Which is the {ordinal} of these: {text}?", f"The {ordinal} is {words[place]}."),
            (f"What is the last word of this list? {text}", f"The last word is {words[-1]}."),
            (f"Write each on a line: {text}", "\n".join(f"- {word}" for word in words)),
            (f"Turn it round: {words[0]}, {words[1]}", f"{words[1]}, {words[0]}"),
            (f"Number these: {text}", "\n".join(f"{i}. {w}" for i, w in enumerate(words, 1))),
        )
    )


def introductions(random: Random) -> Exchange:
    name, place, good = draw_name(random), random.choice(PLACES), draw_good(random)
    opening = random.choice(
        (
            f"Hello, I am {name}.",
            f"My name is {name}.",
            f"This is {name} speaking.",
            f"{name} here.",
            f"Hi, it is {name} from the {place}.",
        )
    )
    return random.choice(
        (
            (opening, f"Hello {name}! How can I help you?"),
            (opening, f"Good to meet you, {name}. What can I do for you?"),
            (f"{opening} What is my name?", f"Your name is {name}."),
            (f"{opening} I lost my {good}.", f"I am sorry, {name}. Let us look for your {good}."),
            (f"{opening} Greet me.", f"Welcome, {name}!"),
            (f"Write a greeting for {name}.", f"Hello {name}, nice to see you."),
            (f"Thank {name} for the {good}.", f"Thank you for the {good}, {name}."),
            (f"Invite {name} to the {place}.", f"{name}, will you come to the {place} with us?"),
            (f"Wish {name} a happy birthday.", f"Happy birthday, {name}!"),
        )
    )


def findings(random: Random) -> Exchange:
    who, other = draw_name(random), draw_name(random)
    place, day, good = random.choice(PLACES), random.choice(DAYS), draw_good(random)
    code, count = draw_code(random), random.randint(2, 90)
    text = random.choice(
        (
            f"{who} met {other} at the {place} on {day}. They bought {count} of the {good}.",
            f"On {day}, {who} sent the {good} to {other}. The number of the parcel is {code}.",
            f"{other} asked {who} for the {good}. It costs {count} dollars at the {place}.",
            f"The {good} belongs to {who}. {other} found it at the {place} in "
            f"{random.choice(MONTHS)}.",
        )
    )
    questions = [
        ("Which names are in the text?", " and ".join(sorted((who, other), key=text.index))),
        ("What thing is it about?", f"It is about the {good}."),
        (f"Who is in the text besides {other}?", f"{who} is in it too."),
    ]
    if str(count) in text:
        questions.append(("Which number is in the text?", f"The number is {count}."))
    if code in text:
        questions.append(("What is the number of the parcel?", f"The number is {code}."))
    if day in text:
        questions.append(("On which day was it?", f"It was on {day}."))
    if place in text:
        questions.append(("Where was it?", f"It was at the {place}."))
    question, answer = random.choice(questions)
    return random.choice((f"{text} {question}", f"{question}\n{text}")), answer


def forms(random: Random) -> Exchange:
    who, code, good = draw_name(random), draw_code(random), draw_good(random)
    address, count = draw_address(random), random.randint(1, 60)
    values = random.sample(
        [("name", who), ("order", code), ("item", good), ("email", address), ("count", str(count))],
        random.randint(2, 4),
    )
    text = ", ".join(f"{key} {value}" for key, value in values)
    lines = "\n".join(f"{key}: {value}" for key, value in values)
    key, value = random.choice(values)
    return random.choice(
        (
            (f"Write this as JSON: {text}", json.dumps(dict(values))),
            (f"Make a form of this: {text}", lines),
            (f"{lines}\nWhat is the {key}?", f"The {key} is {value}."),
            (f"{text}. Which {key} is it?", f"It is {value}."),
            (f"From this form, give the {key} only.\n{lines}", value),
        )
    )


def rewriting(random: Random) -> Exchange:
    who, other, good = draw_name(random), draw_name(random), draw_good(random)
    colour, new = random.sample(COLOURS, 2)
    thing = random.choice(GOODS)
    return random.choice(
        (
            (f"Put {other} for {who}: {who} has the {good}.", f"{other} has the {good}."),
            (f"Make it {new}: a {colour} {thing}", f"a {new} {thing}"),
            (f"Make it a question: {who} has a {thing}.", f"Does {who} have a {thing}?"),
            (f"Make it negative: {who} likes {other}.", f"{who} does not like {other}."),
            (f"Make it past: {who} walks to {other}.", f"{who} walked to {other}."),
            (f"Who gives it? {who} gives {other} the {good}.", f"{who} gives it."),
            (f"Who gets it? {who} gives {other} the {good}.", f"{other} gets it."),
            (f"Shout this: {thing} for {who}", f"{thing} for {who}".upper()),
        )
    )


_MAKERS: tuple[Callable[[Random], Exchange], ...] = (
    *(echo, lists, introductions, introductions),
    *(findings, findings, forms, rewriting),
)
