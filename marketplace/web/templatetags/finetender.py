"""Words for money, time and sizes, and the few tags every page uses."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from math import floor
from pathlib import Path
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from marketplace.common import clock
from marketplace.common.money import format_usd, format_usd_exact
from marketplace.web.templatetags.icons import ICONS
from marketplace.web.times import MOMENT, format_clock, format_duration, parse_moment

register = template.Library()

BUILD = Path(__file__).resolve().parents[1] / "static" / "web" / "build"


@register.filter
def usd(micros: int | None) -> str:
    """``$4.67``, as a headline says it; ``exact_usd`` is what adds up."""
    return "" if micros is None else format_usd(micros)


@register.filter
def exact_usd(micros: int | None) -> str:
    """To the micro-dollar where there is one, so that shown lines add up to the shown total."""
    return "" if micros is None else format_usd_exact(micros)


@register.filter
def lined_usd(micros: int | None, decimals: int) -> SafeString | str:
    """An exact amount in a column of them: all have the same decimals, those past cents fainter."""
    if micros is None:
        return ""
    text = format_usd_exact(micros, decimals=decimals)
    cut = text.index(".") + 3
    return format_html('{}<span class="fine">{}</span>', text[:cut], text[cut:])


@register.filter
def unit_rate(micros_per_unit: float | None) -> str:
    """Micro-dollars a work unit are dollars a million of them."""
    return "" if micros_per_unit is None else f"${micros_per_unit:,.4f}"


@register.filter
def usd_input(micros: int | None) -> str:
    """``9.00``, for a money field."""
    return exact_usd(micros).removeprefix("$").replace(",", "")


@register.filter
def count(value: float | None) -> str:
    return "" if value is None else f"{round(value):,}"


@register.filter
def compact(value: float | None) -> str:
    """``18,240`` or ``6.1 M``."""
    if value is None:
        return ""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e5, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):,.1f} {unit}"
    return f"{round(value):,}"


@register.filter
def file_size(value: int | None) -> str:
    if value is None:
        return ""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value} B"


@register.filter
def seconds_words(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


@register.simple_tag
def time_at(at: datetime | None, seconds: bool = False) -> SafeString | str:
    """A ``<time>`` in the visitor's zone, with the moment in UTC in its tooltip."""
    if at is None:
        return ""
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        clock.format_moment(at),
        format_clock(at, clock.now(), seconds=seconds),
    )


@register.filter
def with_times(text: str) -> SafeString:
    """A sentence of the market, its moments in the visitor's zone."""
    text = str(text)
    parts: list[SafeString | str] = []
    end = 0
    for found in MOMENT.finditer(text):
        parts += [text[end : found.start()], time_at(parse_moment(found[0]), seconds=True)]
        end = found.end()
    return format_html_join("", "{}", ((part,) for part in [*parts, text[end:]]))


@register.simple_tag
def spare_words(deadline_at: datetime, finish_at: datetime) -> str:
    """``30 min to spare`` or ``6 min late``; never a negative number."""
    seconds = (deadline_at - finish_at).total_seconds()
    if abs(seconds) < 1:
        return "right on the deadline"
    if seconds >= 0:
        return f"{format_duration(seconds)} to spare"
    return f"{format_duration(-seconds)} late"


@register.simple_tag
def ago(at: datetime | None) -> str:
    return "never" if at is None else f"{format_duration((clock.now() - at).total_seconds())} ago"


@register.filter
def short_hash(text: str) -> str:
    """The first 8 and last 5 characters."""
    return text if len(text) <= 16 else f"{text[:8]}…{text[-5:]}"


@register.filter
def initials(name: str) -> str:
    words = [word for word in name.replace("@", " ").replace(".", " ").split() if word[0].isalnum()]
    return "".join(word[0] for word in words[:2]).upper() or "?"


@dataclass(frozen=True, slots=True)
class TableHead:
    """The head of one column of ``<c-table>``."""

    name: str
    is_number: bool
    #: Read by screen readers only.
    is_hidden: bool


@register.filter
def table_heads(text: str) -> list[TableHead]:
    """Columns as ``<c-table>`` names them: ``Name | #Number | (Hidden)``."""
    names = [name.strip() for name in text.split("|")]
    return [TableHead(n.strip("#()"), n.startswith("#"), n.startswith("(")) for n in names]


@register.filter
def percent(share: float | None) -> str:
    """``73 %`` from ``0.73``."""
    # A little less than nothing is nothing.
    return "" if share is None else f"{round(share, 2) or 0.0:.0%}".replace("%", " %")


#: Why a bid was refused, for those who may not know what it was.
_REFUSALS = {
    "price": "limit below the price",
    "capacity": "slots were sold",
    "window": "too little time",
    "memory": "no node large enough",
    "verified": "no verified node",
}


@register.filter
def fine_percent(share: float) -> str:
    """``99.98 %``, rounded down: what was away a minute is not 100."""
    return f"{floor(share * 10_000) / 100:g} %"


@register.filter
def refusal_word(refusal: str) -> str:
    return _REFUSALS.get(refusal, refusal)


@register.simple_tag
def button_class(attrs: dict[str, Any]) -> str:
    """The look of a button of the accounts library, from its type and tags."""
    tags = set(attrs.get("tags") or ())
    if "prominent" in tags:
        return "btn primary lg wide"
    if tags & {"danger", "delete"}:
        return "btn danger"
    is_main = attrs.get("type") == "submit" and tags
    return (
        "btn primary"
        if is_main and not tags & {"cancel", "secondary", "link", "outline"}
        else "btn"
    )


@register.filter
def sentence_case(text: str) -> str:
    """``Enter code`` from the ``Enter Code`` of the accounts library, and its spaces taken off."""
    words = text.strip()
    return words[:1].upper() + words[1:].lower()


@register.simple_tag
def icon(name: str, css: str = "") -> SafeString:
    return mark_safe(  # noqa: S308 - our own drawings
        f'<svg class="{css}" viewBox="0 0 16 16" width="16" height="16" fill="none"'
        ' stroke="currentColor" stroke-width="1.5" stroke-linecap="round"'
        f' stroke-linejoin="round" aria-hidden="true">{ICONS[name]}</svg>'
    )


@register.simple_tag
def bar(share: float | None, tone: str = "", css: str = "", rest: str = "") -> SafeString:
    """A bar drawn in attributes, because the style policy forbids style attributes."""
    filled = max(0.0, min(1.0, share or 0.0)) * 100
    return format_html(
        '<svg class="bar {}" aria-hidden="true"><rect class="track {}" width="100%" height="100%"/>'
        '<rect class="fill {}" width="{}%" height="100%" rx="3"/></svg>',
        css,
        rest,
        tone,
        f"{filled:.2f}",
    )


@lru_cache(maxsize=1)
def _manifest_at(changed_at: float) -> dict[str, Any]:
    return json.loads((BUILD / "manifest.json").read_text())


def _manifest() -> dict[str, Any]:
    path = BUILD / "manifest.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: build the pages first (make pages, or npm ci && npm run build"
            " in frontend/web)."
        )
    return _manifest_at(path.stat().st_mtime)


#: The font that every page's text is in; asked for early, the text does not move when it comes.
_FONT = "inter-latin-opsz"


@register.simple_tag
def stylesheet() -> SafeString:
    entry = _manifest()["src/styles/main.css"]
    fonts = format_html_join(
        "\n",
        '<link rel="preload" as="font" type="font/woff2" crossorigin href="{}">',
        ((static(f"web/build/{file}"),) for file in entry.get("assets", []) if _FONT in file),
    )
    href = static(f"web/build/{entry['file']}")
    return fonts + format_html('<link rel="stylesheet" href="{}">', href)


@register.simple_tag
def page_script(entry: str) -> SafeString:
    """The module of one page, such as ``src/job/page.ts``, and what it imports."""
    manifest = _manifest()
    files = [manifest[name]["file"] for name in manifest[entry].get("imports", [])]
    preloads = format_html_join(
        "\n",
        '<link rel="modulepreload" href="{}">',
        ((static(f"web/build/{file}"),) for file in files),
    )
    script = format_html(
        '<script type="module" src="{}"></script>',
        static(f"web/build/{manifest[entry]['file']}"),
    )
    return preloads + script


@register.filter
def marked(fault: dict[str, Any]) -> SafeString:
    """The excerpt of a faulty line with the fault marked."""
    text = fault.get("excerpt", "")
    start, end = fault.get("excerpt_mark_start", 0), fault.get("excerpt_mark_end", 0)
    if not 0 <= start < end <= len(text):
        return format_html("{}", text)
    return format_html("{}<mark>{}</mark>{}", text[:start], text[start:end], text[end:])


@register.simple_tag
def now_day() -> str:
    """``Fri 20 Nov, times in CET``: the zone once per page."""
    local = timezone.localtime(clock.now())
    return f"{local:%a} {local.day} {local:%b}, times in {local:%Z}"


@register.simple_tag
def as_percent(share: float | None) -> str:
    """A width attribute."""
    return f"{max(0.0, min(1.0, share or 0.0)) * 100:.2f}%"


@register.simple_tag
def as_rest(share: float | None) -> str:
    """Where the last ``share`` of a bar begins."""
    return f"{(1 - max(0.0, min(1.0, share or 0.0))) * 100:.2f}%"


@register.simple_tag
def time_plain(at: datetime) -> str:
    return format_clock(at, clock.now())


@register.filter
def short_reference(reference: str) -> str:
    """``bid:bid_01j…`` as its last part, shortened."""
    return short_hash(reference.rpartition(":")[2])


@register.filter
def spaced(name: str) -> str:
    """``vendor_fees`` as ``Vendor fees``."""
    if name == "sla_credits":
        return "Credits for late jobs"
    return name.replace("_", " ").capitalize()


@register.filter
def of_key(values: Mapping[Any, Any], key: Any) -> Any:
    """What a mapping has under a key; 0 where it has nothing."""
    return values.get(key, 0)


@register.filter
def setting(value: bool | float | None) -> str:
    """A setting of a zone in words; none is what the market is built with."""
    if value is None:
        return "as built"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.12g}"
