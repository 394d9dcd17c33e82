"""A report on raw data as its page draws it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

#: The drawing of the lengths, in its own units.
WIDTH, HEIGHT, GAP = 560, 140, 6
#: Bars of one list; what is rarer is added up.
BARS_MAX = 8
_LANGUAGES: dict[str, str] = {
    "ar": "Arabic",
    "da": "Danish",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ru": "Russian",
    "sv": "Swedish",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "zh": "Chinese",
    "?": "Not certain",
}
_KINDS: dict[str, str] = {
    "secret": "Keys and passwords",
    "email": "E-mail addresses",
    "iban": "Bank accounts",
    "card": "Card numbers",
    "phone": "Phone numbers",
    "ip": "Network addresses",
    "ssn": "Social security numbers",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of a list with a bar."""

    label: str
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class BarList:
    """A list with bars, under a title."""

    name: str
    title: str
    bars: tuple[Bar, ...]
    #: What is said where there is no bar, and below them.
    empty: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the drawing of lengths."""

    x: float
    y: float
    width: float
    height: float
    label: str
    count: int

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a bar, in percent of it."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class ShownReport:
    """Everything that the page says of a data set."""

    rows: int
    is_complete: bool
    #: Rows that are fit as they are, to be repaired, repeated and beyond repair, which add up.
    fates: tuple[Bar, ...]
    shortest: int
    median: int
    longest: int
    columns: tuple[Column, ...]
    lists: tuple[BarList, ...]
    #: The rows of the most frequent label for one of the rarest.
    imbalance: float | None
    repetitive: int

    @property
    def fit(self) -> Bar:
        return self.fates[0]

    @property
    def stretches(self) -> list[Stretch]:
        """The fates as one bar."""
        ends = [0.0, *accumulate(fate.share for fate in self.fates)]
        return [
            Stretch(round(100 * begin, 2), round(100 * (end - begin), 2))
            for begin, end in pairwise(ends)
        ]

    @property
    def has_no_usable_row(self) -> bool:
        """Whether no row would be left after a preparation."""
        return self.fates[-1].count == self.rows


def present_report(report: Mapping[str, Any]) -> ShownReport:
    """A stored report as the page shows it."""
    rows = report["rows"]
    shortest, median, _, longest = report["chars"]
    labels = report["labels"]
    return ShownReport(
        rows=rows,
        is_complete=report["is_complete"],
        fates=_list_fates(report),
        shortest=shortest,
        median=median,
        longest=longest,
        columns=_draw_lengths(report.get("lengths", [])),
        lists=_list_bar_lists(report),
        imbalance=max(labels.values()) / min(labels.values()) if len(labels) > 1 else None,
        repetitive=report["repetitive_rows"],
    )


def _list_bar_lists(report: Mapping[str, Any]) -> tuple[BarList, ...]:
    rows = report["rows"]
    languages = _name_keys(report["languages"], _LANGUAGES)
    personal = _name_keys(report["personal_data"], _KINDS)
    lists = (
        BarList(
            "languages",
            "Languages",
            _list_bars(languages, of=rows),
            "No text to tell a language by.",
        ),
        BarList(
            "personal",
            "Likely personal data",
            _list_bars(personal, of=rows),
            "None found.",
            "Names of people are not found, and no program here can replace them.",
        ),
        BarList(
            "faults",
            "What is wrong with rows",
            _list_bars(report["faults"], of=rows),
            "Nothing: every row has the form that training reads.",
        ),
    )
    labels = BarList("labels", "Labels", _list_bars(report["labels"], of=rows), "")
    return (*lists, labels) if labels.bars else lists


def _name_keys(counts: Mapping[str, int], names: Mapping[str, str]) -> dict[str, int]:
    return {names.get(key, key): count for key, count in counts.items()}


def _list_fates(report: Mapping[str, Any]) -> tuple[Bar, ...]:
    rows = report["rows"]
    repeated = report["exact_duplicates"] + report["near_duplicates"]
    unusable = report["rows_unusable"]
    # A repeated row may need a repair as well; it is counted once, as repeated.
    repaired = min(report["rows_to_repair"], rows - repeated - unusable)
    counts = {
        "Fit as they are": rows - repeated - unusable - repaired,
        "To repair": repaired,
        "Repetitions": repeated,
        "Beyond repair": unusable,
    }
    return tuple(Bar(name, n, n / rows if rows else 0.0) for name, n in counts.items())


def _list_bars(counts: Mapping[str, int], *, of: int) -> tuple[Bar, ...]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    bars = [Bar(name, n, min(1.0, n / of) if of else 0.0) for name, n in ordered[:BARS_MAX]]
    others = sum(n for _, n in ordered[BARS_MAX:])
    if others:
        bars.append(Bar(f"{len(ordered) - BARS_MAX} others", others, min(1.0, others / of)))
    return tuple(bars)


def _draw_lengths(lengths: list[list[int]]) -> tuple[Column, ...]:
    if not lengths:
        return ()
    most = max(count for _, count in lengths)
    step = WIDTH / len(lengths)
    return tuple(
        Column(
            x=round(index * step + GAP / 2, 2),
            y=round(HEIGHT * (1 - count / most), 2),
            width=round(step - GAP, 2),
            height=round(HEIGHT * count / most, 2),
            label=f"{bound:,}",
            count=count,
        )
        for index, (bound, count) in enumerate(lengths)
    )
