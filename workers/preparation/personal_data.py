"""Personal data and secrets in texts: found by their form, replaced by placeholders.

Names are not found: that takes a model of the language. Texts that mention people by name still
do so afterwards, and pages that show it must say so.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import phonenumbers

from workers.preparation.texts import map_texts

#: ISO 3166 codes of the regions whose phone numbers can be recognised.
KNOWN_REGIONS = frozenset(phonenumbers.SUPPORTED_REGIONS)


class PersonalDataKind(StrEnum):
    SECRET = "secret"  # noqa: S105
    EMAIL = "email"
    IBAN = "iban"
    CARD = "card"
    PHONE = "phone"
    IP_ADDRESS = "ip"
    SOCIAL_SECURITY_NUMBER = "ssn"


@dataclass(frozen=True, slots=True)
class PersonalDataSpan:
    """Where in a text personal data stand."""

    start: int
    end: int
    kind: PersonalDataKind


_SECRET = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{20,200}|gh[pousr]_[A-Za-z0-9]{36,255}|AKIA[0-9A-Z]{16}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,200}|hf_[A-Za-z0-9]{30,60}"
    r"|eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,2000})"
    r"|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[A-Za-z0-9+/=\s]{1,10000}-----END"
)
_EMAIL = re.compile(
    r"(?<![\w.+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"
)
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b")
_CARD = re.compile(r"(?<![\d.-])\d(?:[ -]?\d){12,18}(?![\d-])")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)")
_IPV6 = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
_SSN = re.compile(r"(?<![\d-])(?!000|666|9\d\d)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\d-])")
_HAS_DIGITS = re.compile(r"\d.{0,8}\d.{0,8}\d")


def find_personal_data(text: str, *, phone_regions: tuple[str, ...] = ()) -> list[PersonalDataSpan]:
    """Personal data of a text in the order of their places, none inside another.

    Parameters
    ----------
    phone_regions : tuple of str
        ISO 3166 codes; numbers without a country prefix are recognised as numbers of these.
    """
    findings: list[PersonalDataSpan] = []
    taken: list[tuple[int, int]] = []
    for finding in _iter_candidates(text, phone_regions):
        if any(finding.start < end and start < finding.end for start, end in taken):
            continue
        taken.append((finding.start, finding.end))
        findings.append(finding)
    return sorted(findings, key=lambda finding: finding.start)


def _iter_candidates(text: str, regions: tuple[str, ...]) -> Iterator[PersonalDataSpan]:
    """In the order of precedence: what is certain by its form comes first."""
    yield from _match(_SECRET, text, PersonalDataKind.SECRET)
    if "@" in text:
        yield from _match(_EMAIL, text, PersonalDataKind.EMAIL)
    if not _HAS_DIGITS.search(text):
        if "::" in text:
            yield from _find_ip_addresses(text)
        return
    for finding in _match(_IBAN, text, PersonalDataKind.IBAN):
        end = _find_iban_end(text[finding.start : finding.end])
        if end:
            yield PersonalDataSpan(finding.start, finding.start + end, finding.kind)
    for finding in _match(_CARD, text, PersonalDataKind.CARD):
        if _is_card(text[finding.start : finding.end]):
            yield finding
    yield from _match(_SSN, text, PersonalDataKind.SOCIAL_SECURITY_NUMBER)
    yield from _find_ip_addresses(text)
    for region in (None, *regions) if "+" in text else regions:
        for match in phonenumbers.PhoneNumberMatcher(text, region):
            yield PersonalDataSpan(match.start, match.end, PersonalDataKind.PHONE)


def _match(
    pattern: re.Pattern[str], text: str, kind: PersonalDataKind
) -> Iterator[PersonalDataSpan]:
    for match in pattern.finditer(text):
        yield PersonalDataSpan(match.start(), match.end(), kind)


def _find_ip_addresses(text: str) -> Iterator[PersonalDataSpan]:
    for pattern in (_IPV4, _IPV6):
        for finding in _match(pattern, text, PersonalDataKind.IP_ADDRESS):
            try:
                address = ipaddress.ip_address(text[finding.start : finding.end])
            except ValueError:
                continue
            # Private and documentation addresses point at no machine.
            if address.is_global:
                yield finding


def _find_iban_end(candidate: str) -> int:
    """Length of the longest beginning that is a bank account number; 0 for none."""
    for end in range(len(candidate), 14, -1):
        digits = candidate[:end].replace(" ", "")
        if candidate[end - 1] == " " or not 15 <= len(digits) <= 34:
            continue
        turned = digits[4:] + digits[:4]
        if int("".join(str(int(sign, 36)) for sign in turned)) % 97 == 1:
            return end
    return 0


def _is_card(candidate: str) -> bool:
    """Whether digits pass Luhn's check (ISO/IEC 7812-1) and are not all the same."""
    digits = [int(sign) for sign in candidate if sign.isdigit()]
    if len(set(digits)) == 1:
        return False
    doubled = (digit * 2 - 9 if digit > 4 else digit * 2 for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


@dataclass(slots=True)
class Masker:
    """Replaces personal data in the texts of one row; one value has one placeholder there."""

    phone_regions: tuple[str, ...] = ()
    #: How many values of each kind were replaced.
    counts: Counter[PersonalDataKind] = field(default_factory=Counter)
    _placeholders: dict[tuple[PersonalDataKind, str], str] = field(default_factory=dict)

    def mask_row(self, value: dict[str, Any]) -> dict[str, Any]:
        """The row with placeholders such as ``[EMAIL_1]`` for what was found."""
        return map_texts(value, self.mask_text)

    def mask_text(self, text: str) -> str:
        """One text with placeholders."""
        parts: list[str] = []
        end = 0
        for finding in find_personal_data(text, phone_regions=self.phone_regions):
            found = text[finding.start : finding.end]
            parts += (text[end : finding.start], self._name(finding.kind, found))
            end = finding.end
        return "".join((*parts, text[end:]))

    def _name(self, kind: PersonalDataKind, found: str) -> str:
        self.counts[kind] += 1
        # The same number may be written with other spaces the next time.
        key = kind, re.sub(r"[\s-]", "", found).casefold()
        if key not in self._placeholders:
            number = 1 + sum(own is kind for own, _ in self._placeholders)
            self._placeholders[key] = f"[{kind.value.upper()}_{number}]"
        return self._placeholders[key]
