"""The sidebar: who one acts for and where one can go."""

from dataclasses import dataclass
from typing import Any

from django import template
from django.template.context import RequestContext
from django.urls import reverse
from django.utils import timezone

from marketplace.webhooks.notices import count_unread

register = template.Library()


@dataclass(frozen=True, slots=True)
class NavLink:
    label: str
    href: str
    icon: str
    current: bool
    count: int | None = None


@dataclass(frozen=True, slots=True)
class NavGroup:
    title: str
    links: tuple[NavLink, ...]


@dataclass(frozen=True, slots=True)
class OrganisationChoice:
    name: str
    kind: str
    others: tuple[Any, ...]


#: Pages below another's address that the menu names beside it.
_IN_THE_MENU_THEMSELVES = (
    "bid_new",
    "operator_audit",
    "operator_background",
    "operator_express",
    "operator_health",
    "operator_jobs",
    "operator_machines",
    "operator_money",
    "operator_organisations",
    "operator_providers",
    "operator_vendors",
    "operator_zones",
    "earnings",
    "payouts",
)


#: An operator's pages: label, name of the route, icon.
_HOUSE = (
    ("Overview", "operator", "home"),
    ("Health", "operator_health", "ok"),
    ("All jobs", "operator_jobs", "jobs"),
    ("Zones", "operator_zones", "market"),
    ("Machines", "operator_machines", "tiers"),
    ("Express lanes", "operator_express", "bolt"),
    ("Organisations", "operator_organisations", "team"),
    ("Providers", "operator_providers", "node"),
    ("Vendors", "operator_vendors", "clean"),
    ("Money", "operator_money", "ledger"),
    ("Background work", "operator_background", "clock"),
    ("Audit log", "operator_audit", "shield"),
)


@register.simple_tag(takes_context=True)
def nav_groups(context: RequestContext) -> tuple[NavGroup, ...]:
    """The menu, which stands in a page twice: at its side, and behind a button on phones."""
    request = context["request"]
    if not hasattr(request, "nav_groups"):
        request.nav_groups = list_nav_groups(request)
    return request.nav_groups


def list_nav_groups(request: Any) -> tuple[NavGroup, ...]:
    """List the pages of the person who asks, as their role has them."""

    def link(label: str, name: str, icon: str, count: int | None = None) -> NavLink:
        href = reverse(name)
        nearer = [at for at in map(reverse, _IN_THE_MENU_THEMSELVES) if at.startswith(f"{href}/")]
        here = _is_below(request.path, href) and not any(
            _is_below(request.path, at) for at in nearer
        )
        return NavLink(label, href, icon, current=here, count=count)

    unread = count_unread(user=request.user, organisation=request.organisation)
    groups = [
        NavGroup(
            "Train",
            (
                link("Home", "train_home", "home"),
                link("Jobs", "job_list", "jobs"),
                link("New bid", "bid_new", "plus"),
                link("Express", "express_new", "bolt"),
                link("Adapters", "adapter_list", "adapter"),
                link("Data sets", "dataset_list", "data"),
                link("Playground", "playground", "chat"),
                link("Notices", "notice_list", "bell", unread),
            ),
        ),
        NavGroup("Money", (link("Wallet", "wallet", "wallet"),)),
        NavGroup(
            "Provide",
            (
                link("Home", "provide_home", "home"),
                link("Nodes", "node_list", "node"),
                link("Earnings", "earnings", "price"),
                link("Payouts", "payouts", "earn"),
                link("Data work", "vendor_list", "clean"),
            ),
        ),
        NavGroup(
            "Workspace",
            (
                link("API keys", "api_key_list", "key"),
                link("Webhooks", "webhook_list", "chain"),
                link("Members", "members", "team"),
                link("Docs", "docs", "book"),
            ),
        ),
    ]
    if request.user.is_operator:
        groups.append(NavGroup("House", tuple(link(*page) for page in _HOUSE)))
    return tuple(sorted(groups, key=lambda group: group.title != _find_door(request)))


def _find_door(request: Any) -> str:
    """Name the group that somebody comes for, which stands first."""
    if request.user.is_operator:
        return "House"
    return "Provide" if request.organisation.is_provider else "Train"


def _is_below(path: str, page: str) -> bool:
    return path == page or path.startswith(f"{page}/")


@register.simple_tag(takes_context=True)
def organisation_choice(context: RequestContext) -> OrganisationChoice:
    request = context["request"]
    current = request.organisation
    kind = "Provider" if current.is_provider else "Job owner"
    others = request.user.organisations.exclude(pk=current.pk).order_by("name")
    return OrganisationChoice(
        current.name, "Operator" if request.user.is_operator else kind, tuple(others)
    )


@register.simple_tag
def zone_abbreviation() -> str:
    """Named once per page: all times are in this zone."""
    return f"Times in {timezone.localtime():%Z}"
