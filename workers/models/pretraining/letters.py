"""What customers and colleagues write, and answers to it in many tones."""

from __future__ import annotations

from random import Random

from workers.models.pretraining.open_words import draw_code, draw_good, draw_invented, draw_name
from workers.models.pretraining.words import DAYS, MONTHS, PLACES

#: What a user says and what the assistant answers.
Exchange = tuple[str, str]

#: ``{p}`` a thing, ``{d}`` a day, ``{n}`` a number, ``{c}`` a code; each with two answers or more.
MATTERS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("My {p} has not come yet.", "I am still waiting for the {p}.", "When do I get the {p}?"),
        (
            "The {p} left our store on {d}.",
            "It should arrive within {n} days.",
            "We have asked the post about your {p}.",
        ),
    ),
    (
        ("The {p} is broken.", "There is a crack in my {p}.", "The {p} came in pieces."),
        (
            "We will send you another {p}.",
            "Please send us a picture of the {p}.",
            "You may keep it, and a new one leaves our store on {d}.",
        ),
    ),
    (
        ("Can I give the {p} back?", "I do not want the {p} any more.", "The {p} is not for me."),
        (
            "You may send the {p} back within {n} days.",
            "The label for the way back is in the box of the {p}.",
            "Your money comes back once the {p} is here.",
        ),
    ),
    (
        ("The {p} is too large.", "My {p} does not fit.", "I need the {p} in another size."),
        (
            "We can change it for another size.",
            "Tell us which size of the {p} you need.",
            "The next size of the {p} will be here on {d}.",
        ),
    ),
    (
        ("What does the {p} cost?", "How much is the {p}?", "Is the {p} cheaper now?"),
        (
            "The {p} costs {n} dollars this week.",
            "Until {d} the {p} is {n} dollars.",
            "The price of the {p} has not changed.",
        ),
    ),
    (
        ("I paid for the {p} twice.", "There is a mistake in the bill for the {p}."),
        (
            "We will correct the bill by {d}.",
            "One payment for the {p} will be returned in {n} days.",
            "Please tell us the number of the bill.",
        ),
    ),
    (
        (
            "Please change order {c}.",
            "Can order {c} go to my office?",
            "Order {c} is not complete.",
        ),
        (
            "We have found order {c}.",
            "Order {c} has been changed.",
            "The rest of order {c} follows on {d}.",
        ),
    ),
    (
        ("How do I use the {p}?", "How do I repair the {p}?", "How should I wash the {p}?"),
        (
            "A little soap and water is enough for the {p}.",
            "There is a page about the {p} on our site.",
            "Read the sheet that came with the {p} first.",
        ),
    ),
    (
        ("Do you have the {p}?", "Will you get more of the {p}?", "I cannot find the {p}."),
        (
            "There are {n} of the {p} left.",
            "We will have the {p} again on {d}.",
            "The {p} is sold out for now.",
        ),
    ),
)
_OPENINGS = (
    *("Hello {who},", "Hi {who},", "Good day {who},", "Dear {who},", "{who},", "Thanks, {who}."),
    *("Hello {who}!", "Good morning {who},", "Welcome back, {who}.", "Sorry, {who}."),
)
_WISHES = (
    *("thank you for writing to us.", "we are sorry about that.", "thank you for your message."),
    *("I see what you mean.", "that should not happen.", "good to hear from you."),
    *("let me look into it.", "of course we can help.", "I understand that you are not happy."),
)
_ENDINGS = (
    *("Best wishes, {me}", "Kind regards, {me}", "Yours, {me}", "See you soon, {me}"),
    *("Let us know if we can help with anything else.", "Have a good day!", "Take care."),
    *("Your team at {firm}", "With best wishes from {firm}", "{me} from {firm}", "", "", ""),
)
_SYSTEM = (
    *(
        "You answer for {firm}.",
        "You are {me} and work at {firm}.",
        "You help the customers of {firm}.",
    ),
    *("Write in a kind tone.", "Use the name of the customer.", "You are a clerk at {firm}."),
)


def draw_support(random: Random) -> tuple[str | None, Exchange]:
    """A customer's message with its answer, and a system line or ``None``."""
    who = draw_name(random)
    values = {
        "who": who,
        "me": draw_name(random),
        "firm": draw_invented(random).capitalize(),
        "p": draw_good(random),
        "d": random.choice(DAYS),
        "n": random.randint(2, 40),
        "c": draw_code(random),
    }
    questions, answers = random.choice(MATTERS)
    asked = sign(random, random.choice(questions).format(**values), who)
    parts = [random.choice(_OPENINGS)]
    if random.random() < 0.6:
        wish = random.choice(_WISHES)
        parts.append(wish if parts[0].endswith(",") else wish[0].upper() + wish[1:])
    parts += random.sample(answers, random.choice((1, 1, 2)))
    parts.append(random.choice(_ENDINGS))
    if parts[0].endswith(",") and parts[1][0].isupper() and random.random() < 0.5:
        parts[1] = parts[1][0].lower() + parts[1][1:]
    reply = " ".join(part for part in parts if part).format(**values)
    system = random.choice(_SYSTEM).format(**values) if random.random() < 0.35 else None
    return system, (asked, reply)


def sign(random: Random, text: str, who: str) -> str:
    """A message with its writer's name somewhere about it."""
    return random.choice(
        (
            f"{text} {who}",
            f"{text}\n{who}",
            f"{who}: {text}",
            f"{text} My name is {who}.",
            f"I am {who}. {text}",
            f"{text} Yours, {who}",
            f"Hello, {who} here. {text}",
        )
    )


def draw_letter(random: Random) -> str:
    """A short letter between two people, in prose."""
    who, other, third = (draw_name(random) for _ in range(3))
    good, place = draw_good(random), random.choice(PLACES)
    day, month, count = random.choice(DAYS), random.choice(MONTHS), random.randint(2, 40)
    lines = random.sample(
        (
            f"The {good} that you sent came on {day}.",
            f"{third} asked about you at the {place}.",
            f"We were at the {place} with {third} for {count} days.",
            f"In {month} we will have time for a visit.",
            f"Could you bring the {good} when you come?",
            f"I still think of the day when {third} lost the {good}.",
            f"It has rained since {day}, and the way to the {place} is closed.",
            f"If you see {third}, please give back the {count} dollars.",
            f"Nobody knows who left the {good} in front of the house.",
            f"My number is {draw_code(random)}.",
        ),
        random.randint(2, 4),
    )
    end = random.choice(("Yours", "With love", "Best wishes", "Until soon", "Your friend"))
    return f"Dear {other},\n{' '.join(lines)}\n{end},\n{who}"
