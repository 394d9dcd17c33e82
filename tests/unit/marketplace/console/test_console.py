"""What providers and the operator see and may do."""

from __future__ import annotations

import re
from datetime import time, timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client

from marketplace.accounts.models import Membership, Organisation, Role
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, Pricing
from marketplace.auction.pay_rule import PAY_RULE
from marketplace.auction.pricing.solve import solve_zone_prices
from marketplace.common.errors import NotAllowed
from marketplace.console import providers, selectors
from marketplace.console.selectors import load_overview
from marketplace.fleet.models import JoinToken, Node, NodeStatus, Provider
from marketplace.fleet.releases import IMAGE_CONTEXT, INSTALL_FILES, WHEEL
from marketplace.fleet.services import (
    ListingTerms,
    approve_provider,
    create_join_token,
    ensure_provider,
)
from marketplace.payments.models import Earning
from marketplace.payments.selectors import get_wallet
from marketplace.tiers.models import ZoneTiers
from marketplace.tiers.services import TierSettings, set_zone_tiers
from tests import builders, market_builders
from tests.builders import NOW
from tests.pages import read_download, read_page

pytestmark = pytest.mark.django_db


@pytest.fixture
def node():
    with time_machine.travel(NOW, tick=False):
        yield market_builders.node(market_builders.zone())


@pytest.fixture
def provider(node: Node, client: Client) -> Client:
    client.force_login(builders.owner_of(node.provider.organisation))
    return client


@pytest.fixture
def operator() -> Client:
    browser = Client()
    browser.force_login(builders.operator())
    return browser


def test_a_provider_sees_its_own_nodes_only(provider: Client, node: Node) -> None:
    other = market_builders.node(node.zone)
    text = read_page(provider.get("/nodes"))
    assert node.name in text
    assert other.name not in text


def test_an_ask_is_set_and_a_wrong_one_is_told_and_changes_nothing(
    provider: Client, node: Node
) -> None:
    provider.post(f"/nodes/{node.pk}/ask", {"ask": "0.25"})
    node.refresh_from_db()
    assert node.ask_micros == 250_000
    page = provider.post(f"/nodes/{node.pk}/ask", {"ask": "cheap"}, follow=True)
    node.refresh_from_db()
    assert node.ask_micros == 250_000
    assert "is not an amount" in read_page(page)


def test_a_drained_node_stays_on_the_page_until_it_is_put_back(
    provider: Client, node: Node
) -> None:
    text = read_page(provider.post(f"/nodes/{node.pk}/drain", follow=True))
    node.refresh_from_db()
    assert node.status == NodeStatus.DRAINING
    assert f"{node.name} sells nothing more." in text
    assert "Drained" in text
    assert "Put it back on sale" in text
    # The form that was shown before it was drained, sent once more, puts nothing back on sale.
    provider.post(f"/nodes/{node.pk}/drain", {"do": "drain"})
    node.refresh_from_db()
    assert node.status == NodeStatus.DRAINING
    assert 'value="undrain"' in text
    undrain = {"do": "undrain"}
    text = read_page(provider.post(f"/nodes/{node.pk}/drain", undrain, follow=True))
    node.refresh_from_db()
    assert node.status == NodeStatus.ONLINE
    assert f"{node.name} is back on sale." in text


def test_a_node_is_taken_away_only_after_a_question_and_can_still_be_put_back(
    provider: Client, node: Node
) -> None:
    assert "Take away" not in read_page(provider.get("/nodes"))
    text = read_page(provider.post(f"/nodes/{node.pk}/drain", follow=True))
    assert f'data-confirm="Take {node.name} away?' in text
    text = read_page(provider.post(f"/nodes/{node.pk}/leave", follow=True))
    assert "leaves as soon as what was sold of it is served." in text
    assert "Leaving" in text
    provider.post(f"/nodes/{node.pk}/drain", {"do": "undrain"})
    node.refresh_from_db()
    assert (node.status, node.leave_asked_at) == (NodeStatus.ONLINE, None)


def test_earnings_are_shown_also_after_the_last_node_has_left(provider: Client, node: Node) -> None:
    owner = node.provider.organisation
    line = {"organisation": owner, "kind": "provider", "accrued_at": NOW, "payable_at": NOW}
    Earning.objects.create(**line, reference="bid:bid_1", amount_micros=2_250)
    Node.objects.update(status=NodeStatus.LEFT)
    text = read_page(provider.get("/nodes"))
    assert node.name not in text
    assert '$0.00<span class="fine">225</span>' in text
    assert PAY_RULE in text


def test_a_provider_cannot_end_the_suspension_of_its_node(
    provider: Client, node: Node, operator: Client
) -> None:
    operator.post(f"/operator/nodes/{node.pk}/suspend", {"reason": "A test."})
    for do in ("drain", "undrain"):
        provider.post(f"/nodes/{node.pk}/drain", {"do": do})
        node.refresh_from_db()
        assert node.status == NodeStatus.SUSPENDED
    text = read_page(provider.get("/nodes"))
    assert "It runs nothing until the operator of this market lifts that." in text
    assert provider.post(f"/operator/nodes/{node.pk}/suspend").status_code == 403
    assert node.name in read_page(operator.get("/operator/providers"))
    operator.post(f"/operator/nodes/{node.pk}/suspend", {"reason": "A test."})
    node.refresh_from_db()
    assert (node.status, node.suspended_at) == (NodeStatus.ONLINE, None)


def test_an_approval_that_is_withdrawn_drains_what_the_provider_lists(
    provider: Client, node: Node, operator: Client
) -> None:
    verify = f"/operator/providers/{node.provider_id}/verify"
    withdraw = f"/operator/providers/{node.provider_id}/withdraw"
    for stranger in (provider, Client()):
        assert stranger.post(verify).status_code in (302, 403)
        assert stranger.post(withdraw).status_code in (302, 403)
    assert "is verified." in read_page(operator.post(verify, follow=True))
    node.provider.refresh_from_db()
    assert node.provider.verified_at is not None
    text = read_page(operator.get("/operator/providers"))
    assert "90 %" in text
    for _ in range(2):
        operator.post(withdraw)
        node.refresh_from_db()
        node.provider.refresh_from_db()
        assert node.status == NodeStatus.DRAINING
        assert (node.provider.approved_at, node.provider.verified_at) == (None, None)
    # Only an operator brings it back.
    provider.post(f"/nodes/{node.pk}/drain", {"do": "undrain"})
    node.refresh_from_db()
    assert node.status == NodeStatus.DRAINING
    assert operator.post(verify).status_code != 500
    node.provider.refresh_from_db()
    assert node.provider.verified_at is None


def test_a_provider_sets_the_hours_in_which_a_node_is_sold(provider: Client, node: Node) -> None:
    hours = f"/nodes/{node.pk}/hours"
    text = read_page(provider.post(hours, {"opens": "22:00", "closes": "06:00"}, follow=True))
    assert "22:00 to 24:00" in text
    assert "00:00 to 06:00" in text
    node.refresh_from_db()
    assert node.sale_opens == time(22)
    assert node.available_until_at is not None
    for wrong in ({"opens": "22:00"}, {"opens": "late", "closes": "06:00"}):
        provider.post(hours, wrong)
        node.refresh_from_db()
        assert node.sale_opens == time(22)
    provider.post(hours, {})
    node.refresh_from_db()
    assert (node.sale_opens, node.available_until_at) == (None, None)
    assert provider.post(f"/nodes/{market_builders.node(node.zone).pk}/hours").status_code == 404


def test_a_suspended_provider_lists_nothing_until_an_operator_lifts_it(
    provider: Client, node: Node, operator: Client
) -> None:
    operator.post(f"/operator/providers/{node.provider_id}/suspend", {"reason": "A test."})
    node.refresh_from_db()
    assert node.status == NodeStatus.SUSPENDED
    form = {"zone": node.zone.name, "tier": "marketplace", "ask": "0.10", "until": ""}
    assert "is suspended and lists no nodes" in read_page(provider.post("/nodes/new", form))
    assert JoinToken.objects.count() == 0
    assert provider.post(f"/operator/providers/{node.provider_id}/suspend").status_code == 403
    assert "Lift the suspension" in read_page(operator.get("/operator/providers"))
    operator.post(f"/operator/providers/{node.provider_id}/suspend", {"reason": "A test."})
    node.refresh_from_db()
    assert node.status == NodeStatus.ONLINE


def test_a_join_command_that_is_not_used_yet_can_be_revoked(
    provider: Client, node: Node, operator: Client
) -> None:
    made = [
        create_join_token(
            zone=node.zone, provider=node.provider, created_by=None, terms=ListingTerms(1), now=NOW
        )[0]
        for _ in range(2)
    ]
    own, other = (f"/nodes/tokens/{made[0].pk}/revoke", f"/operator/tokens/{made[1].pk}/revoke")
    assert own in read_page(provider.get("/nodes"))
    assert other in read_page(operator.get("/operator/providers"))
    assert operator.post(own).status_code == 404
    assert provider.post(other).status_code == 403
    assert not JoinToken.objects.exclude(revoked_at=None).exists()
    provider.post(own)
    operator.post(other)
    assert list(JoinToken.objects.values_list("revoked_at", flat=True)) == [NOW, NOW]
    assert "Join commands not used yet" not in read_page(provider.get("/nodes"))


@pytest.mark.parametrize("who", ["provider", "operator"])
def test_a_nodes_credentials_can_be_revoked(
    provider: Client, node: Node, operator: Client, who: str
) -> None:
    before = node.api_token_hash
    browser = {"provider": provider, "operator": operator}[who]
    address = {"provider": "/nodes", "operator": "/operator/nodes"}[who]
    browser.post(f"{address}/{node.pk}/revoke")
    node.refresh_from_db()
    assert node.api_token_hash != before
    assert node.status == NodeStatus.OFFLINE
    assert node.name in read_page(browser.get("/nodes" if who == "provider" else "/operator"))


def test_only_owners_of_an_organisation_list_nodes_and_change_them(
    node: Node, client: Client
) -> None:
    member, organisation = builders.user(), node.provider.organisation
    Membership.objects.create(organisation=organisation, user=member, role=Role.MEMBER)
    client.force_login(member)
    assert client.get("/nodes").status_code == 200
    for path in ("/nodes/new", f"/nodes/{node.pk}/ask", f"/nodes/{node.pk}/drain"):
        answer = client.post(path, {"ask": "9"})
        assert answer.status_code == 403
        assert "Only an owner" in answer.content.decode()
    before, drained = node.ask_micros, node.drained_at
    node.refresh_from_db()
    assert (node.ask_micros, node.drained_at) == (before, drained)
    assert not JoinToken.objects.filter(provider=node.provider, created_by=member).exists()


def test_nobody_changes_somebody_elses_node(provider: Client, node: Node) -> None:
    other = market_builders.node(node.zone)
    assert provider.post(f"/nodes/{other.pk}/ask", {"ask": "9"}).status_code == 404
    assert provider.post(f"/nodes/{other.pk}/drain").status_code == 404
    assert provider.post(f"/nodes/{other.pk}/leave").status_code == 404
    assert provider.post(f"/nodes/{other.pk}/revoke").status_code == 404
    assert provider.post(f"/operator/nodes/{other.pk}/revoke").status_code == 403
    other.refresh_from_db()
    assert (other.ask_micros, other.status) == (400_000, NodeStatus.ONLINE)


def test_the_join_command_holds_a_token_that_is_shown_once(
    provider: Client, node: Node, settings, tmp_path
) -> None:
    settings.NODE_INSTALL_DIR = tmp_path
    for name in INSTALL_FILES:
        (tmp_path / name).write_text(name)
    (tmp_path / "secret").write_text("not to be served")
    form = {"zone": node.zone.name, "tier": "marketplace", "ask": "0.10", "nodes": "4"}
    made = provider.post("/nodes/new", form)
    text = read_page(made)
    assert re.search(r"FINETENDER_JOIN_TOKEN=\S{20,} ~/finetender/bin/finetender-node join", text)
    assert re.search(r"--url \S+ --gpus 4 --run", text)
    served = re.search(rf"pip install --constraint \S+/install/constraints.txt \S+/{WHEEL}", text)
    assert served
    assert f"/install/{IMAGE_CONTEXT}" in text
    assert "driver 580 or newer" in text
    assert "Waiting for the machine to connect" in text
    stranger = Client()
    for name in INSTALL_FILES:
        reply = stranger.get(f"/install/{name}")
        assert read_download(reply).decode() == name
    assert stranger.get("/install/secret").status_code == 404
    assert stranger.get("/install/..%2Fsecret").status_code == 404
    joining = f"/nodes/joining/{made.context['token'].pk}"
    assert "Waiting for the machine" in read_page(provider.get(joining))
    assert stranger.get(joining).status_code == 302
    token = JoinToken.objects.get()
    assert token.ask_micros == 100_000
    assert made.context["secret"] not in read_page(provider.get("/nodes/new"))


@pytest.mark.parametrize("ask", ["", "-1", "much", "99999999"])
def test_a_wrong_ask_makes_no_token(provider: Client, node: Node, ask: str) -> None:
    form = {"zone": node.zone.name, "tier": "marketplace", "ask": ask, "until": ""}
    reply = provider.post("/nodes/new", form)
    assert reply.context["form"].errors
    assert JoinToken.objects.count() == 0


def test_the_operator_sees_the_books_and_others_do_not(client: Client, node: Node) -> None:
    assert client.get("/operator").status_code == 302
    client.force_login(builders.user())
    assert client.get("/operator").status_code == 403
    client.force_login(builders.operator())
    page = client.get("/operator")
    assert page.context["overview"].books is None
    assert node.name in read_page(page)


def test_the_operator_sees_which_policy_runs_and_how_the_last_solve_went(
    operator: Client, node: Node
) -> None:
    zone = node.zone
    text = read_page(operator.get("/operator"))
    assert "not begun" in text
    refresh_zone(zone=zone, now=NOW)
    assert ">lagrangian</td>" in read_page(operator.get("/operator"))
    later = market_builders.slot_at(zone, 101)
    market_builders.bid(builders.organisation(usd="10"), zone, price_micros=2_000_000, now=NOW)
    decide_pending_bids(zone=zone, now=NOW)
    refresh_zone(zone=zone, now=later)
    assert solve_zone_prices(zone_id=zone.pk, clock=lambda: later)
    assert "Waiting for the next beat" in read_page(operator.get("/operator"))
    refresh_zone(zone=zone, now=market_builders.slot_at(zone, 102))
    assert "In force" in read_page(operator.get("/operator"))


def test_the_operator_sees_why_prices_were_not_solved_and_which_bids_wait(
    operator: Client, node: Node
) -> None:
    zone = node.zone
    refresh_zone(zone=zone, now=NOW)
    Pricing.objects.update(status="failed", problem="ValueError: odd", attempted_at=NOW)
    bid = market_builders.bid(builders.organisation(usd="10"), zone)
    Bid.objects.filter(pk=bid.pk).update(failure="TypeError: odd", failures=1, retry_at=NOW)
    text = read_page(operator.get("/operator"))
    assert "ValueError: odd" in text
    assert "1 bid cannot be decided" in text
    assert bid.pk in text
    assert "TypeError: odd" in text
    assert "cannot be settled" not in text


def test_the_hours_show_what_was_decided_in_them_whenever_it_was_placed(node: Node) -> None:
    owner = builders.organisation(usd="100")
    for status, hours in (("refused", 0.5), ("refused", 23.5), ("refused", 24.5), ("cancelled", 1)):
        bid = market_builders.bid(owner, node.zone)
        decided_at = NOW - timedelta(hours=hours)
        times = {"created_at": NOW - timedelta(hours=30), "decided_at": decided_at}
        Bid.objects.filter(pk=bid.pk).update(status=status, **times)
    bars = [(bar["admitted"], bar["refused"]) for bar in load_overview(now=NOW).hours]
    assert bars == [(0, 1), *[(0, 0)] * 22, (0, 1)]


# -- who may list nodes --------------------------------------------------------------------


@pytest.fixture
def closed(settings) -> None:
    settings.PROVIDERS_NEED_APPROVAL = True


def node_form(node: Node) -> dict[str, str]:
    return {"zone": node.zone.name, "tier": "marketplace", "ask": "0.10", "until": ""}


def test_who_asks_to_provide_lists_nothing_until_an_operator_approves(
    node: Node, client: Client, closed: None
) -> None:
    stranger, operator = Client(), builders.operator()
    stranger.force_login(builders.user())
    assert "Ask to provide" in read_page(stranger.get("/nodes/new"))
    assert "Ask to provide" in read_page(stranger.post("/nodes/new", node_form(node)))
    for _ in range(2):
        page = read_page(stranger.post("/nodes/provide", follow=True))
        assert "Waits for approval" in page
    provider = Provider.objects.get(approved_at=None)
    assert not provider.organisation.is_provider
    assert "Waits for approval" in read_page(stranger.post("/nodes/new", node_form(node)))
    with pytest.raises(NotAllowed, match="once the operator of this market has approved it"):
        create_join_token(
            zone=node.zone, provider=provider, created_by=None, terms=ListingTerms(100_000), now=NOW
        )
    assert JoinToken.objects.filter(provider=provider).count() == 0

    assert stranger.post(f"/operator/providers/{provider.pk}/approve").status_code == 403
    client.force_login(operator)
    assert provider.organisation.name in read_page(client.get("/operator"))
    for _ in range(2):
        page = client.post(f"/operator/providers/{provider.pk}/approve", follow=True)
        assert "may list nodes" in read_page(page)
    provider.refresh_from_db()
    assert (provider.approved_at, provider.approved_by) == (NOW, operator)
    assert provider.organisation.is_provider
    assert "Providers who ask" not in read_page(client.get("/operator"))
    assert "FINETENDER_JOIN_TOKEN=" in read_page(stranger.post("/nodes/new", node_form(node)))
    assert JoinToken.objects.filter(provider=provider).count() == 1


def test_only_operators_approve_and_only_providers_there_are(node: Node, client: Client) -> None:
    client.force_login(builders.operator())
    assert client.post("/operator/providers/prv_none/approve").status_code == 404
    with pytest.raises(NotAllowed, match="Only an operator"):
        approve_provider(provider=node.provider, approved_by=builders.user(), now=NOW)


def test_where_no_approval_is_needed_a_provider_lists_at_once(node: Node) -> None:
    stranger = Client()
    stranger.force_login(builders.user())
    assert "FINETENDER_JOIN_TOKEN=" in read_page(stranger.post("/nodes/new", node_form(node)))


def test_who_waited_for_approval_lists_once_none_is_needed_any_more(node: Node, settings) -> None:
    stranger = Client()
    stranger.force_login(builders.user())
    settings.PROVIDERS_NEED_APPROVAL = True
    stranger.post("/nodes/provide")
    settings.PROVIDERS_NEED_APPROVAL = False
    assert "FINETENDER_JOIN_TOKEN=" in read_page(stranger.post("/nodes/new", node_form(node)))


def test_the_house_rents_nothing_for_a_provider_that_is_not_approved(
    node: Node, closed: None
) -> None:
    asked = ensure_provider(organisation=builders.organisation(), now=NOW)
    with pytest.raises(NotAllowed, match="approved"):
        set_zone_tiers(zone=node.zone, provider=asked, settings=TierSettings(1, 1))
    assert not ZoneTiers.objects.exists()


def test_a_new_account_asks_for_money_and_the_operator_grants_it_on_the_overview(
    client: Client,
) -> None:
    operator = Client()
    operator.force_login(builders.operator())
    owner = builders.user()
    client.force_login(owner)
    organisation = Organisation.objects.get(personal_for=owner)
    text = read_page(client.post("/wallet/ask", {"usd": "25"}, follow=True))
    assert "The operator sees your request for $25.00." in text
    assert "$25.00 asked for" in text
    page = operator.get("/operator")
    [request] = page.context["overview"].funds_requests
    assert owner.email in read_page(page)
    answer = {"do": "grant", "amount_micros": request.amount_micros}
    assert client.post(f"/operator/funds/{request.pk}", answer).status_code == 403
    text = read_page(operator.post(f"/operator/funds/{request.pk}", answer, follow=True))
    assert f"$25.00 is in the wallet of {organisation}." in text
    assert "Requests for money" not in text
    assert get_wallet(organisation=organisation).available_micros == 25_000_000
    assert client.post("/wallet/ask", {"usd": "much"}, follow=True).status_code == 200
    assert operator.get("/operator").context["overview"].funds_requests == []


def test_demo_money_makes_a_new_account_able_to_bid(client: Client, settings: Any) -> None:
    settings.DEMO_MONEY_MICROS = 20_000_000
    client.force_login(builders.user())
    assert "Take $20.00 of demo money" in read_page(client.get("/wallet"))
    text = read_page(client.post("/wallet/ask", {"do": "demo"}, follow=True))
    assert "You can bid." in text
    assert "demo money" not in text.replace("Demo money is in your wallet", "")


def test_an_operator_has_providers_and_each_ones_nodes_by_the_page(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "PROVIDERS_PER_PAGE", 2)
    monkeypatch.setattr(providers, "NODES_OF_EACH", 1)
    monkeypatch.setattr(providers, "NODES_PER_PAGE", 2)
    zone = market_builders.zone()
    made = [market_builders.node(zone).provider for _ in range(3)]
    more = [market_builders.node(zone, of=made[0]) for _ in range(2)]
    names = sorted(Node.objects.filter(provider=made[0]).values_list("name", flat=True))
    assert len(names) == 1 + len(more)

    def follow(address: str) -> list[str]:
        """Each page's text, from one to the next."""
        pages = [read_page(operator.get(address))]
        while found := re.search(r'class="btn sm"\s+href="([^"]*)"\s*>Next', pages[-1]):
            address = f"/operator/providers{found[1].replace('&amp;', '&')}"
            pages.append(read_page(operator.get(address)))
        return pages

    listed = follow("/operator/providers")
    shown = [re.findall(r'<h2 id="h-(prv_[^"]*)">', text) for text in listed]
    by_name = sorted(made, key=lambda each: (each.organisation.name, each.pk))
    assert shown == [[by_name[0].pk, by_name[1].pk], [by_name[2].pk]]
    [first] = [text for text in listed if f"?provider={made[0].pk}" in text]
    assert "All 3 nodes" in first
    alone = follow(f"/operator/providers?provider={made[0].pk}")
    assert [re.findall(r'class="nm"[^>]*>([^<]*)<', text) for text in alone] == [
        names[:2],
        names[2:],
    ]
    assert made[1].pk not in alone[0]


def test_the_overview_names_some_nodes_and_counts_all(
    operator: Client, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selectors, "NODES_LISTED", 2)
    monkeypatch.setattr(selectors, "SILENT_NAMED", 1)
    for _ in range(3):
        market_builders.node(node.zone, of=node.provider)
    Node.objects.exclude(pk=node.pk).update(status=NodeStatus.OFFLINE)
    text = read_page(operator.get("/operator"))
    assert "the first 2 of 4" in text
    assert "3 nodes silent in all." in text
    assert text.count("is silent.") == 1
