"""What a person may find by name: their pages, jobs, adapters, data, nodes, and the guides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypedDict, TypeVar

from django.db.models import Model, Q, QuerySet
from django.urls import reverse

from marketplace.accounts.models import Organisation, User
from marketplace.auction.models import Bid
from marketplace.auction.selectors import list_bids
from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.jobs.models import Dataset, Job
from marketplace.jobs.selectors import list_continuable_jobs, list_datasets
from marketplace.web.presenters.docs import search_docs

Found = TypeVar("Found", bound=Model)
#: Things of one kind that are shown.
SHOWN_MAX = 5
#: Of each kind the newest are looked through: older ones are found on the pages of their kind.
SEARCHED_MAX = 500


class Thing(TypedDict):
    """Something that was found."""

    name: str
    #: What tells it from others of its name.
    detail: str
    href: str


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """Things of one kind."""

    title: str
    things: tuple[Thing, ...]


def find_things(
    words: str, *, user: User, organisation: Organisation, pages: Iterable[Thing]
) -> list[FoundGroup]:
    """Find what has the words in its name or id; without words, the newest of each kind.

    Of an organisation's things only its own. ``pages``: those that the person has in the menu.
    """
    named = Q(name__icontains=words) | Q(pk__icontains=words)
    jobs = _look_through(Job.objects.filter(organisation=organisation).order_by("-pk"), named)
    lost = list_bids(organisation).filter(status__in=(*Bid.OPEN, *Bid.LOST))
    adapters = _look_through(list_continuable_jobs(organisation), named)
    datasets = _look_through(list_datasets(organisation), named)
    nodes = Node.objects.filter(provider__organisation=organisation).exclude(status=NodeStatus.LEFT)
    groups = (
        ("Pages", [page for page in pages if words.lower() in page["name"].lower()]),
        ("Jobs", _describe(jobs, "job_detail")),
        ("Bids", _describe(_look_through(lost, named), "bid_detail")),
        ("Adapters", _describe(adapters, "adapter_detail")),
        ("Data", _describe(datasets, "dataset_detail")),
        ("Nodes", _list_nodes(_look_through(nodes.order_by("-pk"), named))),
        ("Organisations", _list_organisations(named) if user.is_operator and words else ()),
        ("Of others", _list_by_id(words) if user.is_operator else ()),
        ("Docs", _list_docs(words)),
    )
    found = [FoundGroup(title, tuple(things)) for title, things in groups]
    return [group for group in found if group.things]


def _look_through(rows: QuerySet[Found], named: Q) -> list[Found]:
    newest = rows.values("pk")[:SEARCHED_MAX]
    return list(rows.filter(named, pk__in=newest)[:SHOWN_MAX])


def _describe(rows: Iterable[Job | Bid | Dataset], page: str) -> Iterator[Thing]:
    for row in rows:
        yield Thing(name=row.name, detail=row.pk, href=reverse(page, args=[row.pk]))


def _list_nodes(nodes: Iterable[Node]) -> Iterator[Thing]:
    for node in nodes:
        href = reverse("node_detail", args=[node.pk])
        yield Thing(name=node.name, detail=str(NodeStatus(node.status).label), href=href)


def _list_organisations(named: Q) -> Iterator[Thing]:
    """Operators open each of them by its page, which the audit log notes."""
    for found in _look_through(Organisation.objects.order_by("-pk"), named):
        href = reverse("operator_organisation", args=[found.pk])
        yield Thing(name=found.name, detail=found.pk, href=href)


def _list_by_id(words: str) -> Iterator[Thing]:
    """What an operator opens by its whole id, whoever it belongs to."""
    for model, page in ((Job, "operator_job"), (Bid, "operator_bid"), (Node, "operator_node")):
        for found in model.objects.filter(pk=words):
            yield Thing(name=found.name, detail=found.pk, href=reverse(page, args=[found.pk]))
    for zone in Zone.objects.filter(Q(pk=words) | Q(name=words)):
        href = reverse("operator_zone", args=[zone.name])
        yield Thing(name=zone.name, detail=zone.pk, href=href)


def _list_docs(words: str) -> Iterator[Thing]:
    for hit in search_docs(words)[:SHOWN_MAX]:
        yield Thing(name=hit.title, detail="", href=hit.where)
