"""The guides and the API's documents as pages: nothing is fetched, so they work offline."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.conf import settings
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import slugify
from markdown_it import MarkdownIt
from markdown_it.token import Token

#: Guides in the order in which they are listed; others come after them.
ORDER = ("curl", "openai", "sdk", "moving-from-openai", "bidding", "webhooks", "running-a-node")
#: The API's documents by the last part of their address.
SURFACES = {"market": "The market's API", "openai": "OpenAI-compatible API"}
_GUIDE_LINK = re.compile(r"([a-z-]+)\.md")
_REFERENCE_LINK = re.compile(r"\.\./api/([a-z]+)\.json")
_FOUND_MAX = 40


@dataclass(frozen=True, slots=True)
class Guide:
    """One guide as a page."""

    slug: str
    title: str
    html: SafeString
    #: Headings with their anchors and the words below them.
    sections: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class BodyMember:
    """A parameter, or a member of a body."""

    name: str
    kind: str
    is_required: bool
    description: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of an API's document."""

    anchor: str
    method: str
    path: str
    description: str
    parameters: tuple[BodyMember, ...]
    body: tuple[BodyMember, ...]
    #: HTTP statuses with the name of the shape that comes.
    answers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """Something that a search found."""

    title: str
    where: str
    words: str


@cache
def load_guides() -> Mapping[str, Guide]:
    """All guides by their slug, read once in each process."""
    files = sorted((settings.BASE_DIR / "docs" / "guides").glob("*.md"))
    guides = {file.stem: _render(file.stem, file.read_text(encoding="utf-8")) for file in files}
    first = {slug: guides[slug] for slug in ORDER if slug in guides}
    return first | guides


def _render(slug: str, text: str) -> Guide:
    # HTML inside a guide would be shown as text.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    title, heading, sections = slug, ("", ""), dict[tuple[str, str], list[str]]()
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            words = tokens[index + 1].content
            heading = (words, slugify(words))
            token.attrSet("id", heading[1])
            title = words if token.tag == "h1" else title
        elif token.content:
            sections.setdefault(heading, []).append(token.content)
        for child in token.children or ():
            _lead_to_pages(child)
    html = markdown.renderer.render(tokens, markdown.options, {})
    return Guide(
        slug=slug,
        title=title,
        html=mark_safe(html),  # noqa: S308
        sections=tuple((*key, " ".join(words)) for key, words in sections.items()),
    )


def _lead_to_pages(token: Token) -> None:
    """Links to other guides and to the reference lead to their pages; those elsewhere to none."""
    if token.type != "link_open":
        return
    target = str(token.attrGet("href") or "")
    guide, reference = _GUIDE_LINK.fullmatch(target), _REFERENCE_LINK.fullmatch(target)
    if guide is not None:
        token.attrSet("href", f"/docs/{guide[1]}")
    elif reference is not None:
        token.attrSet("href", f"/docs/api/{reference[1]}")
    elif not target.startswith("https://"):
        token.attrs.pop("href")


@cache
def load_reference(surface: str) -> tuple[Operation, ...]:
    """The operations of an API, by address; those of the document that is checked in."""
    path = settings.BASE_DIR / "docs" / "api" / f"{surface}.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    return tuple(_list_operations(document))


def _list_operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {})
            shapes = [kind["schema"] for kind in content.values()]
            yield Operation(
                anchor=operation["operationId"],
                method=method.upper(),
                path=path,
                description=operation.get("description") or operation.get("summary", ""),
                parameters=tuple(
                    BodyMember(
                        name=one["name"],
                        kind=_name_kind(one.get("schema", {})),
                        is_required=one.get("required", False),
                        description=one.get("description", ""),
                    )
                    for one in operation.get("parameters", ())
                ),
                body=tuple(_list_members(document, shapes[0])) if shapes else (),
                answers=tuple(
                    (status, _name_answer(answer))
                    for status, answer in operation["responses"].items()
                ),
            )


def _list_members(document: Mapping[str, Any], shape: Mapping[str, Any]) -> Iterator[BodyMember]:
    """The members of a body; of the first shape where there are several."""
    while True:
        if "$ref" in shape:
            shape = document["components"]["schemas"][shape["$ref"].rpartition("/")[2]]
        elif "oneOf" in shape:
            shape = shape["oneOf"][0]
        else:
            break
    for name, member in shape.get("properties", {}).items():
        yield BodyMember(
            name=name,
            kind=_name_kind(member),
            is_required=name in shape.get("required", ()),
            description=member.get("description", ""),
        )


def _name_kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for joined in ("oneOf", "anyOf", "allOf"):
        if joined in schema:
            return " or ".join(_name_kind(each) for each in schema[joined])
    kind = schema.get("type", "any")
    kind = " or ".join(kind) if isinstance(kind, list) else str(kind)
    return f"list of {_name_kind(schema.get('items', {}))}" if kind == "array" else kind


def _name_answer(answer: Mapping[str, Any]) -> str:
    for media, content in answer.get("content", {}).items():
        name = _name_kind(content.get("schema", {}))
        return name if media == "application/json" else f"{name} ({media})"
    return ""


def search_docs(words: str) -> list[SearchHit]:
    """Sections of guides and operations that have all the words."""
    wanted = words.lower().split()
    return [found for found in _list_searched() if _has_all(found, wanted)][:_FOUND_MAX]


def _has_all(found: SearchHit, wanted: list[str]) -> bool:
    text = f"{found.title} {found.words}".lower()
    return bool(wanted) and all(word in text for word in wanted)


def _list_searched() -> Iterator[SearchHit]:
    for guide in load_guides().values():
        for heading, anchor, words in guide.sections:
            title = guide.title if heading == guide.title else f"{guide.title}: {heading}"
            yield SearchHit(title, f"/docs/{guide.slug}#{anchor}", words)
    for surface in SURFACES:
        for operation in load_reference(surface):
            members = (*operation.parameters, *operation.body)
            words = " ".join(
                [operation.description, *(f"{one.name} {one.description}" for one in members)]
            )
            where = f"/docs/api/{surface}#{operation.anchor}"
            yield SearchHit(f"{operation.method} {operation.path}", where, words)
