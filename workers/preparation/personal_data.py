"""Personal data and secrets in texts: found by their form, replaced by placeholders.

Names are not found: that takes a model of the language. Texts that mention people by name still
do so afterwards, and pages that show it must say so.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, cast

import phonenumbers
from detect_secrets.plugins.aws import AWSKeyDetector
from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
from detect_secrets.plugins.discord import DiscordBotTokenDetector
from detect_secrets.plugins.gitlab_token import GitLabTokenDetector
from detect_secrets.plugins.mailchimp import MailchimpDetector
from detect_secrets.plugins.slack import SlackDetector
from detect_secrets.plugins.square_oauth import SquareOAuthDetector
from detect_secrets.plugins.telegram_token import TelegramBotTokenDetector
from detect_secrets.plugins.twilio import TwilioKeyDetector

from workers.preparation.texts import map_texts

#: ISO 3166 codes of the regions whose phone numbers can be recognised.
KNOWN_REGIONS = frozenset(phonenumbers.SUPPORTED_REGIONS)


#: The largest first: most numbers are found after a few.
_LARGEST = ("US", "GB", "DE", "FR", "IN", "BR", "ES", "IT", "JP", "CN", "RU", "MX", "AU", "NL")
_ALL_REGIONS = (*_LARGEST, *sorted(KNOWN_REGIONS - set(_LARGEST)))


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


#: Forms of keys that detect-secrets keeps, beside those below. Its others match whole lines, parts
#: of a key, or words in capital letters.
_KEPT_FORMS: tuple[re.Pattern[str], ...] = tuple(
    pattern
    for detector in (
        *(AWSKeyDetector, AzureStorageKeyDetector, DiscordBotTokenDetector, GitLabTokenDetector),
        *(MailchimpDetector, SlackDetector, SquareOAuthDetector, TelegramBotTokenDetector),
        TwilioKeyDetector,
    )
    for pattern in cast(Any, detector).denylist
)
_KEY_LETTERS_MIN = 20
#: Keys of services that many use, by the form that each gives them.
_SECRET = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{20,200}|(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,200}"
    r"|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}|glpat-[A-Za-z0-9_-]{20,64}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35}|ya29\.[A-Za-z0-9_-]{20,500}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,200}|xapp-[A-Za-z0-9-]{10,200}|hf_[A-Za-z0-9]{30,60}"
    r"|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,250}|SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}"
    r"|shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|do[opr]_v1_[a-f0-9]{64}|whsec_[A-Za-z0-9+/=]{20,100}"
    r"|eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,2000})"
    # with the headers of an encrypted one, and also where the text is cut within its last line
    r"|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----(?:\s{0,4}[A-Za-z-]{1,40}: [^\n]{1,120}\n){0,5}"
    r"[A-Za-z0-9+/=\s\\n]{1,10000}-----END(?: [A-Z ]{0,20}PRIVATE KEY-----)?"
)
#: What is named a secret where it stands: in an assignment, an address, a query.
_NAMED_SECRETS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:\w{0,30}[_-])?(?:password|passwd|pwd|passphrase|secret|api[_-]?key|access[_-]?key"
        r"|(?:auth|access|api|bearer)?[_-]?token)\b[\"']?(?: is |\s{0,3}[:=]\s{0,3})[\"']?"
        r"(?P<value>(?=\S{0,100}\d)(?=\S{0,100}[a-z])[^\s\"',;<>()&]{8,200})",
        r"://[^\s/:@]{1,64}:(?P<value>[^\s/@]{3,100})@",
        r"[?&](?:\w{0,20}token|\w{0,20}key|secret|sig|signature|password)=(?P<value>[^&\s#]{6,300})",
    )
)
_EMAIL = re.compile(r"(?<![\w.+-])[\w.%+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}\b")
_IBAN = re.compile(r"\b[A-Za-z]{2}\d{2}(?: ?[A-Za-z0-9]{4}){2,7}(?: ?[A-Za-z0-9]{1,3})?\b")
_CARD = re.compile(r"(?<![\d.-])\d(?:[ .-]?\d){12,18}(?![\d-])")
#: Digits in groups, as people write phone numbers: with a leading zero or an area code in
#: brackets, as in North America, or after a word that says so.
_PHONE = re.compile(
    r"(?<![\w.,/:@#(-])(?P<number>\(?0\d{1,5}\)?[\d \u00a0().\-/]{4,16}\d"
    r"|(?:1[ .-])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[ .-])[2-9]\d\d[ .-]\d{4})(?![\w@]|[.,:/-]\d)"
    r"|\b(?:call|phone|tel|telephone|mobile|cell|fax|whatsapp|sms|text|ring|dial|reach)\b"
    r"[^\d\n(]{0,24}(?P<told>\d{2,6}(?:[ \u00a0.\-/]\d{2,6}){1,5})(?![\w@]|[.,:/-]\d)",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{4}[-/. ]\d{1,2}[-/. ]\d{1,2}|\d{1,2}[-/. ]\d{1,2}[-/. ]\d{2,4}")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)")
_IPV6 = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
_SSN = re.compile(r"(?<![\d-])(?!000|666|9\d\d)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\d-])")
_HAS_DIGITS = re.compile(r"\d.{0,8}\d.{0,8}\d")


def find_personal_data(text: str, *, phone_regions: tuple[str, ...] = ()) -> list[PersonalDataSpan]:
    """Personal data of a text in the order of their places, none inside another.

    Parameters
    ----------
    phone_regions : tuple of str
        ISO 3166 codes; numbers without a country prefix are recognised as numbers of these, or
        of any region where none is named.
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
    for pattern in _KEPT_FORMS:
        for match in pattern.finditer(text):
            # Of a key behind its name, the key alone.
            group = 1 if pattern.groups and len(match[1] or "") >= _KEY_LETTERS_MIN else 0
            yield PersonalDataSpan(*match.span(group), PersonalDataKind.SECRET)
    for pattern in _NAMED_SECRETS:
        for match in pattern.finditer(text):
            yield PersonalDataSpan(*match.span("value"), PersonalDataKind.SECRET)
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
    if "+" in text:
        for match in phonenumbers.PhoneNumberMatcher(text, None):
            yield PersonalDataSpan(match.start, match.end, PersonalDataKind.PHONE)
    for found in _PHONE.finditer(text):
        group = "number" if found["number"] else "told"
        if _is_phone(found[group], regions or _ALL_REGIONS):
            yield PersonalDataSpan(*found.span(group), PersonalDataKind.PHONE)


@lru_cache(maxsize=4096)
def _is_phone(written: str, regions: tuple[str, ...]) -> bool:
    """Whether what is written as a phone number is one that a region has given out."""
    if _DATE.fullmatch(written) or not 7 <= sum(map(str.isdigit, written)) <= 15:
        return False
    for region in regions:
        try:
            number = phonenumbers.parse(written, region)
        except phonenumbers.NumberParseException:
            return False
        if phonenumbers.is_valid_number(number):
            return True
    return False


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
        digits = candidate[:end].replace(" ", "").upper()
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


#: Builds what masks one row; gives ``None`` where nothing is masked.
BuildMasker = Callable[[], Masker | None]
