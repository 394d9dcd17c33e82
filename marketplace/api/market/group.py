"""Bids that came at the same moment, taken in together.

What one request to ``POST /api/bids`` with an API key goes through in the view, a
group of them goes through here, with the same functions and in the same order:
key, scope, limit, idempotency key, body, zone, data set, ``place_bids``. What
they read and write is shared: a handful of statements and one commit for all.
Each is answered for itself. No HTTP here and no event loop; see ``entrance`` and
``desk``.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from rest_framework.exceptions import AuthenticationFailed
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from marketplace.accounts.models import ApiKey
from marketplace.api.callers import (
    CHALLENGE,
    Caller,
    check_scope,
    find_keys,
    require_key,
    secret_of,
)
from marketplace.api.idempotency import check_idempotency_key
from marketplace.api.market.answers import placed_responses
from marketplace.api.market.asking import asked_of, dataset_choice_check, zone_of
from marketplace.api.market.requests import BidRequest, checked
from marketplace.api.problems import ProblemRenderer, exception_handler
from marketplace.api.throttles import Counted, count_requests
from marketplace.api.views import REQUEST_ID, StrictJSONParser, sign_problem
from marketplace.auction.bidding.measure import unknown_dataset
from marketplace.auction.bidding.place import NewBid, PlacedBid, place_bids
from marketplace.auction.models import BidStatus
from marketplace.auction.selectors import refresh_bids
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import get_zones_by_name
from marketplace.jobs.models import Dataset
from marketplace.jobs.selectors import get_datasets
from marketplace.jobs.services import is_dataset_counted

ADDRESS = "/api/bids"
SCOPE = "bids:write"
KIND = "bids"


@dataclass(frozen=True, slots=True, eq=False)
class Post:
    """One request, nothing of it looked at."""

    authorization: str
    #: The header's value; ``None`` without one.
    idempotency_key: str | None
    request_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back over HTTP, beside the headers that every answer has."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stored bid that its lane has not decided."""

    post: Post
    counted: Counted | None
    placed: PlacedBid


class PassOn:
    """This request would keep the others waiting: it goes through the view."""


Reply = Answer | Waiting | PassOn


@dataclass(slots=True, eq=False)
class _Taken:
    """A request on its way; ``error`` ends it."""

    post: Post
    key: ApiKey | None = None
    counted: Counted | None = None
    idempotency_key: str | None = None
    body: dict[str, Any] = field(default_factory=dict)
    asked: NewBid | None = None
    slow: bool = False
    error: Exception | None = None


def posts_place(posts: Sequence[Post], *, now: datetime) -> list[Reply]:
    """Place the bids of a group; an answer for each that has one already."""
    taken = [_Taken(post) for post in posts]
    try:
        _keys_find(taken, now=now)
        _count(taken)
        _each(taken, _read)
        _ask(taken)
        placed = _place(taken, now=now)
    except Exception as error:
        # Of what all share, such as the database; no request is to blame for it.
        return [answer_to_error(item.post, error, item.counted) for item in taken]
    return [
        PassOn()
        if item.slow
        else answer_to_error(item.post, item.error, item.counted)
        if item.error is not None
        else Waiting(post=item.post, counted=item.counted, placed=placed[item])
        for item in taken
    ]


def waiting_answers(waiting: Sequence[Waiting], *, last: bool) -> dict[int, Answer]:
    """Answers by place, to those whose bid is decided by now, and ``last`` to all."""
    refresh_bids(item.placed.bid for item in waiting)
    ready = [
        index
        for index, item in enumerate(waiting)
        if last or item.placed.bid.status != BidStatus.PENDING
    ]
    responses = placed_responses([waiting[index].placed for index in ready])
    return {
        index: _answer(waiting[index].post, response, waiting[index].counted)
        for index, response in zip(ready, responses, strict=True)
    }


def answer_to_error(post: Post, error: Exception, counted: Counted | None = None) -> Answer:
    """Any failure as a problem."""
    request = SimpleNamespace(path=ADDRESS)
    return _answer(post, exception_handler(error, {"request": request}), counted)


def _answer(post: Post, response: Response, counted: Counted | None) -> Answer:
    sign_problem(response, post.request_id)
    renderer = ProblemRenderer() if response.status_code >= 400 else JSONRenderer()
    headers = {name: value for name, value in response.items() if name != "Content-Type"}
    headers |= {"Content-Type": renderer.media_type, REQUEST_ID: post.request_id}
    if counted is not None:
        headers |= counted.headers
    return Answer(
        status=response.status_code,
        headers=tuple(headers.items()),
        body=renderer.render(response.data, renderer.media_type),
    )


def _each(taken: Iterable[_Taken], step: Callable[[_Taken], None]) -> None:
    """One step of each request that is still on its way."""
    for item in taken:
        if item.error is None and not item.slow:
            try:
                step(item)
            except Exception as error:
                item.error = error


def _keys_find(taken: Sequence[_Taken], *, now: datetime) -> None:
    secrets: dict[_Taken, str] = {}

    def read(item: _Taken) -> None:
        secrets[item] = secret_of(item.post.authorization) or ""

    def known(item: _Taken) -> None:
        item.key = require_key(keys[secrets[item]])
        check_scope(item.key, SCOPE)

    _each(taken, read)
    keys = find_keys(secrets.values(), now=now)
    _each(taken, known)
    for item in taken:
        if isinstance(item.error, AuthenticationFailed):
            item.error.auth_header = CHALLENGE  # type: ignore[attr-defined]


def _count(taken: Sequence[_Taken]) -> None:
    counting = [item for item in taken if item.error is None and item.key is not None]
    identities = [item.key.pk for item in counting if item.key is not None]
    for item, counted in zip(counting, count_requests(identities, kind=KIND), strict=True):
        item.counted = counted

    def check(item: _Taken) -> None:
        if item.counted is not None:
            item.counted.check()

    _each(counting, check)


def _read(item: _Taken) -> None:
    """The body, checked."""
    item.idempotency_key = check_idempotency_key(item.post.idempotency_key)
    content = StrictJSONParser().parse(io.BytesIO(item.post.body), parser_context={})
    item.body = checked(BidRequest, content)


def _ask(taken: Sequence[_Taken]) -> None:
    """Find the zones and data sets of the bodies, for all at once."""
    bodies = [item.body for item in taken if item.error is None]
    zones = get_zones_by_name(body["zone"] for body in bodies)
    datasets = get_datasets(body["dataset_id"] for body in bodies if body.get("dataset_id"))
    _zones_attach(datasets.values(), zones.values())

    def ask(item: _Taken) -> None:
        assert item.key is not None
        zone = zone_of(item.body, zones)
        dataset_choice_check(item.body)
        dataset = datasets.get(item.body["dataset_id"])
        if dataset is None or dataset.organisation_id != item.key.organisation.pk:
            raise unknown_dataset()
        if not is_dataset_counted(dataset=dataset, zone=zone):
            item.slow = True
            return
        who = Caller(user=item.key.created_by, organisation=item.key.organisation, key=item.key)
        item.asked = asked_of(
            item.body, who=who, key=item.idempotency_key, zone=zone, dataset=dataset
        )

    _each(taken, ask)


def _zones_attach(datasets: Iterable[Dataset], zones: Iterable[Zone]) -> None:
    """Give data sets their zones; as a rule they are among those of the bids."""
    known = {zone.pk: zone for zone in zones}
    own = [dataset for dataset in datasets if dataset.zone_id is not None]
    elsewhere = {dataset.zone_id for dataset in own} - known.keys()
    if elsewhere:
        known |= Zone.objects.in_bulk(elsewhere)
    for dataset in own:
        dataset.zone = known[dataset.zone_id]  # type: ignore[assignment]


def _place(taken: Sequence[_Taken], *, now: datetime) -> dict[_Taken, PlacedBid]:
    placing = {item: item.asked for item in taken if item.asked is not None and item.error is None}
    placed: dict[_Taken, PlacedBid] = {}
    outcomes = place_bids(asked=list(placing.values()), now=now)
    for item, outcome in zip(placing, outcomes, strict=True):
        if isinstance(outcome, PlacedBid):
            placed[item] = outcome
        else:
            item.error = outcome
    return placed
