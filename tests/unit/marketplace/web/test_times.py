"""Money, time and sizes in words; prices whose shown parts add up."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from marketplace.web import times
from marketplace.web.presenters.receipt import choose_quantum, list_price_lines
from marketplace.web.templatetags import finetender as filters
from tests.builders import NOW


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (4_670_000, "$4.67"),
        (1_234_567_890_000, "$1,234,567.89"),
        (50_000, "$0.05"),
        (39_600, "$0.0396"),
        (1, "$0.000001"),
        (0, "$0.00"),
        (None, ""),
    ],
)
def test_a_headline_shows_cents_and_more_only_where_cents_show_nothing(
    micros: int | None, shown: str
) -> None:
    assert filters.usd(micros) == shown


def test_moments_in_sentences_are_shown_in_the_visitors_time() -> None:
    with timezone.override("Europe/Amsterdam"), time_machine.travel(NOW, tick=False):
        shown = filters.with_times("Planned to finish by 2026-03-02 09:30:05 UTC.")
        iso = filters.with_times("<b> from 2026-03-02T09:30:05.250000+00:00 on, not 12:00")
        assert times.localize_moments("until 2026-03-02T09:30:05Z.", NOW) == "until 10:30:05."
    assert shown == (
        'Planned to finish by <time datetime="2026-03-02T09:30:05Z" '
        'title="2026-03-02 09:30:05 UTC">10:30:05</time>.'
    )
    assert iso.startswith("&lt;b&gt; from <time ")
    assert iso.endswith(">10:30:05</time> on, not 12:00")


def test_a_receipt_lines_up_its_decimals_and_dims_those_past_cents() -> None:
    assert filters.lined_usd(14_625, 6) == '$0.01<span class="fine">4625</span>'
    assert filters.lined_usd(0, 6) == '$0.00<span class="fine">0000</span>'
    assert filters.lined_usd(None, 2) == ""


def test_exact_amounts_keep_their_digits_and_no_others() -> None:
    assert filters.exact_usd(22_245_000) == "$22.245"
    assert filters.exact_usd(11_600_000) == "$11.60"
    assert filters.usd_input(1_250_000_000) == "1250.00"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.31, "0.31 s"), (44, "44 s"), (90, "1 min 30 s"), (2640, "44 min"), (7800, "2 h 10 min")],
)
def test_durations_have_two_units_at_most(seconds: float, shown: str) -> None:
    assert times.format_duration(seconds) == shown


def test_distance_to_a_deadline_is_never_a_negative_number() -> None:
    later = NOW + timedelta(minutes=30)
    assert filters.spare_words(later, NOW) == "30 min to spare"
    assert filters.spare_words(NOW, later) == "30 min late"
    assert filters.spare_words(NOW, NOW) == "right on the deadline"


def test_days_are_named_only_when_they_are_not_today() -> None:
    assert times.format_clock(NOW, NOW) == "09:00"
    assert times.format_clock(NOW - timedelta(days=2), NOW) == "Sat 09:00"
    assert times.format_clock(NOW - timedelta(days=40), NOW) == "21 Jan 2026"


def test_the_fault_of_a_line_is_marked_and_escaped() -> None:
    fault = {"excerpt": '<b>"oops', "excerpt_mark_start": 3, "excerpt_mark_end": 8}
    assert filters.marked(fault) == "&lt;b&gt;<mark>&quot;oops</mark>"
    assert filters.marked({"excerpt": "<x>"}) == "&lt;x&gt;"


parts = st.fixed_dictionaries(
    {name: st.floats(0, 5e7) for name in ("vendor", "operational", "compute", "memory")}
)


@given(parts)
def test_shown_lines_add_up_to_the_shown_total(made: dict[str, float]) -> None:
    total = -(-sum(made.values()) // 1)
    lines = list_price_lines(made | {"rounding": total - sum(made.values())}, int(total))
    quantum = choose_quantum(int(total))
    assert sum(line.micros for line in lines) == round(int(total) / quantum) * quantum
    assert all(line.micros % quantum == 0 for line in lines)
    assert {line.key for line in lines} >= {"operational", "compute", "memory"}
