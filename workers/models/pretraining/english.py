"""Small English conversations and paragraphs, made from templates and a seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from workers.models.pretraining.copying import draw_copying
from workers.models.pretraining.letters import draw_letter, draw_support
from workers.models.pretraining.open_words import draw_good, draw_name
from workers.models.pretraining.words import (
    COUNTRIES,
    DAYS,
    FEELINGS,
    MONTHS,
    OPPOSITES,
    PLACES,
    PLURALS,
    RECIPES,
    SUPPORT,
    THINGS,
    TRANSLATIONS,
    UNITS,
    WEATHER,
)

#: What a user says and what the assistant answers.
Exchange = tuple[str, str]

SYSTEM_LINES = (
    "You are a helpful assistant.",
    "Answer in one short sentence.",
    "Be brief and friendly.",
    "You work in a shop and help customers.",
    "You are a patient teacher.",
    "Answer with the result only.",
)


def a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def conversation(random: Random) -> list[dict[str, str]]:
    """A chat of one to three exchanges, sometimes with a system line."""
    messages: list[dict[str, str]] = []
    system = random.choice(SYSTEM_LINES) if random.random() < 0.3 else None
    exchanges: list[Exchange] = []
    if random.random() < 0.3:
        system, exchange = draw_support(random)
        exchanges.append(exchange)
    else:
        for _ in range(random.choice((1, 1, 2, 3))):
            exchanges.append(random.choices(_MAKERS, weights=_WEIGHTS)[0](random))
    if system is not None:
        messages.append({"role": "system", "content": system})
    for question, answer in exchanges:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return messages


def paragraph(random: Random) -> str:
    """A few sentences of prose: a story, a note, or facts."""
    return random.choice((_story, _facts, _note, _diary, draw_letter, draw_letter))(random)


def sums(random: Random) -> Exchange:
    sign = random.choice("++-*")
    left, right = random.randint(0, 30), random.randint(0, 20)
    if sign == "*":
        left, right = random.randint(0, 10), random.randint(0, 10)
    if sign == "-" and right > left:
        left, right = right, left
    result = {"+": left + right, "-": left - right, "*": left * right}[sign]
    asked = random.choice(
        (
            f"What is {left} {sign} {right}?",
            f"{left} {sign} {right}",
            f"Compute {left} {sign} {right}.",
        )
    )
    return asked, f"{left} {sign} {right} = {result}"


def counting(random: Random) -> Exchange:
    start = random.randint(0, 40)
    kind = random.randrange(3)
    if kind == 0:
        return f"Count from {start} to {start + 5}.", ", ".join(
            str(n) for n in range(start, start + 6)
        )
    if kind == 1:
        return f"What number comes after {start}?", f"The number after {start} is {start + 1}."
    other = random.randint(0, 40)
    return f"Which is larger, {start} or {other}?", f"{max(start, other)} is the larger number."


def geography(random: Random) -> Exchange:
    country, capital, continent = random.choice(COUNTRIES)
    return random.choice(
        (
            (f"What is the capital of {country}?", f"The capital of {country} is {capital}."),
            (
                f"Which country has the capital {capital}?",
                f"{capital} is the capital of {country}.",
            ),
            (f"Where is {country}?", f"{country} is in {continent}."),
            (f"Is {country} in {continent}?", f"Yes, {country} is in {continent}."),
            (f"Name a city in {country}.", f"{capital} is a city in {country}."),
        )
    )


def things(random: Random) -> Exchange:
    name, kind, one, two, where = random.choice(THINGS)
    other, other_kind, *_ = random.choice(THINGS)
    same = "Yes" if kind == other_kind else "No"
    rest = f"{a(other)} is {a(other_kind)}."
    return random.choice(
        (
            (f"What is {a(name)}?", f"{a(name).capitalize()} is {a(kind)}. It is {one} and {two}."),
            (f"Describe {a(name)}.", f"The {name} is {one} and {two}. You can find it {where}."),
            (f"Where can I find {a(name)}?", f"You can find {a(name)} {where}."),
            (f"Is {a(name)} {a(kind)}?", f"Yes, {a(name)} is {a(kind)}."),
            (f"Is {a(other)} {a(kind)}?", f"{same}, {rest}"),
            (f"Write a sentence about {a(name)}.", f"The {one} {name} is {where}."),
        )
    )


def listing(random: Random) -> Exchange:
    kind = random.choice(sorted({kind for _, kind, *_ in THINGS}))
    members = [name for name, its_kind, *_ in THINGS if its_kind == kind]
    count = random.randint(2, min(4, len(members)))
    chosen = random.sample(members, count)
    word = {2: "two", 3: "three", 4: "four"}[count]
    plural = {"fish": "fish", "piece of furniture": "pieces of furniture"}.get(kind, f"{kind}s")
    if random.random() < 0.5:
        return f"List {word} {plural}.", "\n".join(f"- {name}" for name in chosen)
    joined = ", ".join(chosen[:-1]) + f" and {chosen[-1]}"
    return f"Name {word} {plural}.", f"{word.capitalize()} {plural} are {joined}."


def language(random: Random) -> Exchange:
    kind = random.randrange(5)
    if kind == 0:
        pair = random.choice(OPPOSITES)
        one, two = pair if random.random() < 0.5 else pair[::-1]
        return f"What is the opposite of {one}?", f"The opposite of {one} is {two}."
    if kind == 1:
        one, many = random.choice(PLURALS)
        return f"What is the plural of {one}?", f"The plural of {one} is {many}."
    if kind == 2:
        entry = random.choice(TRANSLATIONS)
        index = random.randint(1, 3)
        tongue = ("French", "Spanish", "German")[index - 1]
        return f"Translate {entry[0]} into {tongue}.", f"In {tongue}, {entry[0]} is {entry[index]}."
    name = random.choice(THINGS)[0]
    if kind == 3:
        return f"Spell the word {name}.", " ".join(name)
    return f"Write {name} in capital letters.", name.upper()


def calendar(random: Random) -> Exchange:
    if random.random() < 0.5:
        index = random.randrange(7)
        return (
            f"What day comes after {DAYS[index]}?",
            f"{DAYS[(index + 1) % 7]} comes after {DAYS[index]}.",
        )
    if random.random() < 0.5:
        index = random.randrange(12)
        after = MONTHS[(index + 1) % 12]
        return f"What month comes after {MONTHS[index]}?", f"{after} comes after {MONTHS[index]}."
    unit, count, parts = random.choice(UNITS)
    return f"How many {parts} are in {a(unit) if unit != 'hour' else 'an hour'}?", (
        f"There are {count} {parts} in {a(unit) if unit != 'hour' else 'an hour'}."
    )


def support(random: Random) -> Exchange:
    question, answer = random.choice(SUPPORT)
    values = {"p": draw_good(random), "n": random.randint(2, 14), "day": random.choice(DAYS)}
    opening = random.choice(("", "", "", "Hello. ", "Hi, ", "Please help. "))
    return opening + question.format(**values), answer.format(**values)


def steps(random: Random) -> Exchange:
    task, lines = random.choice(RECIPES)
    numbered = "\n".join(f"{i}. {line}" for i, line in enumerate(lines, 1))
    return random.choice((f"How do I {task}?", f"Explain how to {task}.")), numbered


def reading(random: Random) -> Exchange:
    who, place, day = draw_name(random), random.choice(PLACES), random.choice(DAYS)
    product = draw_good(random)
    text = f"{who} went to the {place} on {day} and bought {a(product)}."
    return random.choice(
        (
            (f"{text} Who went to the {place}?", f"{who} went to the {place}."),
            (f"{text} What did {who} buy?", f"{who} bought {a(product)}."),
            (f"{text} When was it?", f"It was on {day}."),
            (f"{text} Where did {who} go?", f"{who} went to the {place}."),
            (
                f"Write this as JSON: {text}",
                json.dumps({"name": who, "place": place, "day": day, "item": product}),
            ),
        )
    )


def feeling(random: Random) -> Exchange:
    product = draw_good(random)
    good = random.random() < 0.5
    words = (
        ("great", "lovely", "perfect", "very good")
        if good
        else ("terrible", "broken", "useless", "too slow")
    )
    text = f"The {product} is {random.choice(words)}."
    return f"Is this review positive or negative? {text}", "Positive." if good else "Negative."


def manners(random: Random) -> Exchange:
    # Of no use here, but the committed model's corpus was drawn with it.
    draw_name(random)
    product = draw_good(random)
    return random.choice(
        (
            ("Hello!", "Hello! How can I help you?"),
            ("Thank you.", "You are welcome."),
            ("Good morning.", "Good morning! What can I do for you?"),
            ("How are you?", "I am well, thank you. How are you?"),
            ("Goodbye.", f"Goodbye! Have a nice {random.choice(DAYS)}."),
            (
                f"Make this polite: Give me the {product}.",
                f"Could you please give me the {product}?",
            ),
            (
                f"Make this polite: Bring the {product} here.",
                f"Could you please bring the {product} here?",
            ),
        )
    )


def story(random: Random) -> Exchange:
    name = random.choice(THINGS)[0]
    return f"Tell me a short story about {a(name)}.", _story(random, hero=name)


_MAKERS: tuple[Callable[[Random], Exchange], ...] = (
    *(sums, counting, geography, things, listing, language, calendar),
    *(support, steps, reading, feeling, manners, story, draw_copying),
)
_WEIGHTS = (10, 5, 8, 10, 5, 8, 5, 6, 5, 10, 4, 4, 5, 50)


def _story(random: Random, *, hero: str | None = None) -> str:
    name, _, one, two, where = random.choice(THINGS)
    if hero is not None:
        name, _, one, two, where = next(entry for entry in THINGS if entry[0] == hero)
    who = draw_name(random)
    place, weather, feel = random.choice(PLACES), random.choice(WEATHER), random.choice(FEELINGS)
    product = draw_good(random)
    day = random.choice(DAYS)
    openings = (
        f"Once there was {a(one)} {name} {where}.",
        f"One {weather} {day}, {who} saw {a(name)} {where}.",
        f"{who} lived near the {place} and had {a(two)} {name}.",
    )
    middles = (
        f"It was {one} and {two}, and it felt {feel}.",
        f"It wanted to see the {place}.",
        f"{who} was {feel} and said hello.",
        f"The day was {weather}, so they went to the {place}.",
        f"On the way they found {a(product)}.",
        f"They asked {draw_name(random)} for help.",
        f"Nobody at the {place} knew what to do.",
    )
    endings = (
        "In the end everybody went home.",
        f"After that day {who} was always {feel}.",
        "They were friends for many years.",
        f"So the {name} came back to the {place} every {day}.",
    )
    chosen = random.sample(middles, random.randint(2, 3))
    return " ".join((random.choice(openings), *chosen, random.choice(endings)))


def _facts(random: Random) -> str:
    lines: list[str] = []
    for _ in range(random.randint(2, 4)):
        country, capital, continent = random.choice(COUNTRIES)
        name, kind, one, two, where = random.choice(THINGS)
        unit, count, parts = random.choice(UNITS)
        lines.append(
            random.choice(
                (
                    f"{country} is a country in {continent}, and its capital is {capital}.",
                    f"The {name} is {a(kind)} that is {one} and {two}.",
                    f"You can find the {name} {where}.",
                    f"One {unit} has {count} {parts}.",
                    f"{capital} is a large city in {country}.",
                )
            )
        )
    return " ".join(lines)


def _note(random: Random) -> str:
    sender, receiver = (draw_name(random), draw_name(random))
    product, place, day = draw_good(random), random.choice(PLACES), random.choice(DAYS)
    return (
        f"Dear {receiver},\n"
        + random.choice(
            (
                f"I left the {product} at the {place}. Could you bring it on {day}?",
                f"we meet at the {place} on {day}. Please do not forget the {product}.",
                f"thank you for the {product}. I use it every {day} at the {place}.",
            )
        )
        + f"\n{random.choice(('Best wishes', 'Yours', 'See you soon'))},\n{sender}"
    )


def _diary(random: Random) -> str:
    who, friend = (draw_name(random), draw_name(random))
    hour = random.randint(6, 11)
    return (
        f"On {random.choice(DAYS)} {who} got up at {hour} and felt {random.choice(FEELINGS)}. "
        f"It was a {random.choice(WEATHER)} day in {random.choice(MONTHS)}. "
        f"At {hour + 2} {who} met {friend} at the {random.choice(PLACES)}. "
        f"They talked about {a(draw_good(random))} and {a(random.choice(THINGS)[0])}. "
        f"Then {friend} went to the {random.choice(PLACES)}, and {who} went home."
    )
