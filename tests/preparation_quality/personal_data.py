"""Personal data and secrets planted in sentences, and what only looks like them."""

from __future__ import annotations

import base64
import string
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import phonenumbers

from tests.preparation_quality.duplicate_rows import Writer
from workers.preparation.personal_data import PersonalDataKind, find_personal_data

CASES = 30
_REGIONS = ("US", "GB", "DE", "FR", "CH", "IN", "BR", "ES", "IT", "JP", "AU", "NL", "PL", "SE")
_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class PlantResult:
    """How many of a kind's planted texts were found, whole."""

    name: str
    kind: PersonalDataKind | None
    cases: int
    found: int


def _pick(r: Random, letters: str, length: int) -> str:
    return "".join(r.choices(letters, k=length))


def _luhn(digits: str) -> str:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 == 0 else 1)
        total += value - 9 * (value > 9)
    return digits + str(-total % 10)


def _card(r: Random) -> str:
    whole = _luhn(r.choice(("4", "51", "55", "37"))[:1] + _pick(r, string.digits, 14))
    joint = r.choice(("", " ", "-"))
    return joint.join(whole[at : at + 4] for at in range(0, 16, 4))


def _iban(r: Random) -> str:
    country, length = r.choice((("DE", 18), ("CH", 17), ("NL", 14), ("ES", 20)))
    body = _pick(r, string.digits, length)
    turned = "".join(str(int(sign, 36)) for sign in f"{body}{country}00")
    whole = f"{country}{98 - int(turned) % 97:02}{body}"
    return r.choice((whole, " ".join(whole[at : at + 4] for at in range(0, len(whole), 4))))


def _phone(r: Random, form: int) -> str:
    region = r.choice(_REGIONS)
    kind = phonenumbers.PhoneNumberType.MOBILE
    number = phonenumbers.example_number_for_type(region, kind)
    assert number is not None
    for _ in range(200):
        digits = list(str(number.national_number))
        for place in r.sample(range(3, len(digits)), 3):
            digits[place] = r.choice(string.digits)
        other = phonenumbers.PhoneNumber(
            country_code=number.country_code, national_number=int("".join(digits))
        )
        if phonenumbers.is_valid_number(other):
            number = other
            break
    return phonenumbers.format_number(number, form)


def _international(r: Random) -> str:
    return _phone(r, phonenumbers.PhoneNumberFormat.INTERNATIONAL)


def _national(r: Random) -> str:
    return f"my phone is {_phone(r, phonenumbers.PhoneNumberFormat.NATIONAL)}"


def _email(r: Random) -> str:
    name = _pick(r, string.ascii_lowercase, 6)
    joint, end = r.choice(".-_+"), r.choice(("com", "org", "co.uk", "example"))
    return f"{name}{joint}{_pick(r, string.ascii_lowercase, 4)}@{name}.{end}"


def _ip(r: Random) -> str:
    if r.random() < 0.5:
        return (
            f"{r.choice((8, 51, 93, 185))}.{r.randrange(255)}.{r.randrange(255)}.{r.randrange(255)}"
        )
    return f"2a00:1450:{r.randrange(1, 9999):x}:{r.randrange(1, 9999):x}::{r.randrange(1, 9999):x}"


def _ssn(r: Random) -> str:
    return f"{r.randrange(100, 600)}-{r.randrange(10, 99)}-{r.randrange(1000, 9999)}"


def _known_key(r: Random) -> str:
    ways: tuple[Callable[[], str], ...] = (
        lambda: "AKIA" + _pick(r, string.ascii_uppercase + string.digits, 16),
        lambda: "ghp_" + _pick(r, _LETTERS, 36),
        lambda: "sk_live_" + _pick(r, _LETTERS, 24),
        lambda: "sk-" + _pick(r, _LETTERS, 20) + "T3BlbkFJ" + _pick(r, _LETTERS, 20),
        lambda: "xoxb-" + _pick(r, string.digits, 12) + "-" + _pick(r, _LETTERS, 24),
        lambda: "hf_" + _pick(r, _LETTERS, 34),
        lambda: "AIza" + _pick(r, _LETTERS, 35),
        lambda: "SK" + _pick(r, "0123456789abcdef", 32),
        lambda: _pick(r, string.digits, 9) + ":" + _pick(r, _LETTERS, 35),
        lambda: _pick(r, "0123456789abcdef", 32) + "-us12",
        lambda: "AccountKey=" + base64.b64encode(r.randbytes(64)).decode(),
        lambda: "sq0csp-" + _pick(r, _LETTERS, 43),
    )
    return r.choice(ways)()


def _named_secret(r: Random) -> str:
    name = r.choice(("password", "DB_PASSWORD", "api_key", "secret", "auth_token"))
    joint = r.choice(("=", ": ", " = "))
    return name + joint + _pick(r, string.ascii_lowercase, 6) + _pick(r, string.digits, 4) + "x"


def _private_key(r: Random) -> str:
    lines = "\n".join(_pick(r, _LETTERS, 64) for _ in range(4))
    return f"-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----"


#: Planted: the name, the kind, what makes one, and what before it belongs to the sentence.
PLANTED: tuple[tuple[str, PersonalDataKind, Callable[[Random], str], str], ...] = (
    ("e-mail addresses", PersonalDataKind.EMAIL, _email, ""),
    ("phone numbers with a country's prefix", PersonalDataKind.PHONE, _international, ""),
    ("phone numbers as written at home", PersonalDataKind.PHONE, _national, "my phone is "),
    ("card numbers", PersonalDataKind.CARD, _card, ""),
    ("bank accounts (IBAN)", PersonalDataKind.IBAN, _iban, ""),
    ("network addresses", PersonalDataKind.IP_ADDRESS, _ip, ""),
    ("social security numbers (US)", PersonalDataKind.SOCIAL_SECURITY_NUMBER, _ssn, ""),
    ("keys of 12 services", PersonalDataKind.SECRET, _known_key, ""),
    ("passwords and tokens by their names", PersonalDataKind.SECRET, _named_secret, "*"),
    ("private keys", PersonalDataKind.SECRET, _private_key, ""),
)


def _order_number(r: Random) -> str:
    return f"order {_pick(r, string.digits, 9)}"


def _date(r: Random) -> str:
    return f"{r.randrange(1990, 2030)}-{r.randrange(10, 12)}-{r.randrange(10, 28)}"


def _sum(r: Random) -> str:
    return f"{r.randrange(1, 900)},{r.randrange(100, 999)},{r.randrange(100, 999)} francs"


def _version(r: Random) -> str:
    return f"version {r.randrange(9)}.{r.randrange(30)}.{r.randrange(30)}"


def _private_address(r: Random) -> str:
    return f"192.168.{r.randrange(255)}.{r.randrange(255)}"


def _commit(r: Random) -> str:
    return f"commit {_pick(r, '0123456789abcdef', 40)}"


def _identifier(r: Random) -> str:
    parts = (8, 4, 4, 4, 12)
    return "id " + "-".join(_pick(r, "0123456789abcdef", length) for length in parts)


def _wrong_card(r: Random) -> str:
    right = _luhn(_pick(r, "23456789", 1) + _pick(r, string.digits, 14))
    return right[:-1] + str((int(right[-1]) + 1) % 10)


def _about_passwords(r: Random) -> str:
    return r.choice(("your password is short", "the token was given", "a secret: be kind to all"))


#: What only looks like one.
INNOCENT: tuple[tuple[str, Callable[[Random], str]], ...] = (
    ("order numbers", _order_number),
    ("dates", _date),
    ("sums of money", _sum),
    ("versions", _version),
    ("private network addresses", _private_address),
    ("commits", _commit),
    ("identifiers (UUID)", _identifier),
    ("numbers with a wrong check digit", _wrong_card),
    ("sentences about passwords", _about_passwords),
)


def measure_personal_data(*, seed: int, cases: int = CASES) -> list[PlantResult]:
    """Look for what was planted, and for what was not."""
    writer = Writer(seed)
    results: list[PlantResult] = []
    for name, kind, make, before in PLANTED:
        found = 0
        for _ in range(cases):
            text, start, end = _plant(writer, make(writer.random), before)
            found += any(
                each.kind is kind and each.start <= start and each.end >= end
                for each in find_personal_data(text)
            )
        results.append(PlantResult(name, kind, cases, found))
    for name, make in INNOCENT:
        texts = [_plant(writer, make(writer.random), "")[0] for _ in range(cases)]
        found = sum(bool(find_personal_data(text)) for text in texts)
        results.append(PlantResult(name, None, cases, found))
    return results


def _plant(writer: Writer, planted: str, before: str) -> tuple[str, int, int]:
    """A sentence, and where in it the data stand; ``*``: after the sign of an assignment."""
    head, tail = writer.write(6) + " ", " " + writer.write(5) + "."
    skipped = len(before)
    if before == "*":
        skipped = len(planted) - len(planted.replace("=", ":").rpartition(":")[2].lstrip())
    return head + planted + tail, len(head) + skipped, len(head) + len(planted)
