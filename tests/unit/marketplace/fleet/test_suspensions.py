"""Suspended nodes and providers, and credentials that are taken back."""

from __future__ import annotations

import pytest

from marketplace.common.errors import UserError
from marketplace.fleet.models import JoinToken, Node, NodeStatus, Provider
from marketplace.fleet.secrets import hash_secret
from marketplace.fleet.selectors import find_node_by_api_token
from marketplace.fleet.services import (
    ListingTerms,
    ask_node_to_leave,
    create_join_token,
    drain_node,
    join_node,
    lift_node_suspension,
    lift_provider_suspension,
    list_join_models,
    record_heartbeat,
    revoke_join_token,
    revoke_node_token,
    suspend_node,
    suspend_provider,
    undrain_node,
)
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.job_builders import at
from tests.unit.marketplace.common.threads import at_once
from workers.protocol.messages import Heartbeat, JoinModelsRequest, JoinRequest

pytestmark = pytest.mark.django_db


@pytest.fixture
def node():
    made, _ = build.joined(market.zone())
    return made


@pytest.fixture
def operator():
    return builders.operator()


def status(node: Node) -> NodeStatus:
    return NodeStatus(Node.objects.get(pk=node.pk).status)


def join_again(node: Node, *, named: str | None = None, now=NOW) -> Node:
    _, secret = create_join_token(
        zone=node.zone, provider=node.provider, created_by=None, terms=ListingTerms(1), now=now
    )
    own = named is None or named == node.name
    Node.objects.filter(pk=node.pk).update(api_token_hash=hash_secret("held"))
    request = JoinRequest(secret, named or node.name, build.facts(), "held" if own else "")
    return Node.objects.get(pk=join_node(request=request, now=now).node_id)


def test_nothing_that_a_provider_does_ends_a_suspension(node, operator):
    suspend_node(node=node, suspended_by=operator, reason="A test.", now=at(1))
    drain_node(node=node, now=at(2))
    assert status(node) == NodeStatus.SUSPENDED
    undrain_node(node=node, now=at(3))
    assert status(node) == NodeStatus.SUSPENDED
    with pytest.raises(UserError, match="Only a drained node"):
        undrain_node(node=node, now=at(4))
    record_heartbeat(node=node, heartbeat=Heartbeat(node_id=node.pk, at=0.0), now=at(5))
    assert status(node) == NodeStatus.SUSPENDED
    assert join_again(node, now=at(6)).status == NodeStatus.SUSPENDED
    assert ask_node_to_leave(node=node, now=at(7)).status == NodeStatus.LEFT
    assert join_again(node, now=at(8)).status == NodeStatus.SUSPENDED


def test_a_suspension_that_is_lifted_leaves_what_the_provider_wanted(node, operator):
    suspend_node(node=node, suspended_by=operator, reason="A test.", now=at(1))
    suspend_node(node=node, suspended_by=builders.operator(), reason="A test.", now=at(2))
    suspended = Node.objects.get()
    assert (suspended.suspended_at, suspended.suspended_by) == (at(1), operator)
    drain_node(node=node, now=at(3))
    lift_node_suspension(node=node, lifted_by=operator, now=at(4))
    assert status(node) == NodeStatus.DRAINING
    with pytest.raises(UserError, match="is not suspended"):
        lift_node_suspension(node=node, lifted_by=operator, now=at(5))


def test_only_operators_suspend_and_lift(node, operator):
    owner = builders.owner_of(node.provider.organisation)
    for change in (
        lambda: suspend_node(node=node, suspended_by=owner, reason="A test.", now=NOW),
        lambda: suspend_provider(
            provider=node.provider, suspended_by=owner, reason="A test.", now=NOW
        ),
        lambda: lift_node_suspension(node=node, lifted_by=owner, now=NOW),
        lambda: lift_provider_suspension(provider=node.provider, lifted_by=owner, now=NOW),
    ):
        with pytest.raises(UserError) as refused:
            change()
        assert refused.value.code == "operators_only"
    assert status(node) == NodeStatus.ONLINE


def test_a_suspended_provider_joins_no_node_with_a_token_it_had(node, operator):
    token, secret = create_join_token(
        zone=node.zone, provider=node.provider, created_by=None, terms=ListingTerms(1), now=NOW
    )
    own = market.node(node.zone, of=node.provider)
    suspend_node(node=own, suspended_by=operator, reason="A test.", now=at(1))
    suspend_provider(provider=node.provider, suspended_by=operator, reason="A test.", now=at(2))
    assert {status(node), status(own)} == {NodeStatus.SUSPENDED}
    for call in (
        lambda: list_join_models(request=JoinModelsRequest(secret, 3, 3), now=at(3)),
        lambda: join_node(
            request=JoinRequest(token=secret, name="another", facts=build.facts()), now=at(3)
        ),
        lambda: join_again(node, now=at(3)),
    ):
        with pytest.raises(UserError) as refused:
            call()
        assert refused.value.code == "provider_suspended"
    with pytest.raises(UserError, match="whole provider"):
        lift_node_suspension(node=node, lifted_by=operator, now=at(4))
    lift_provider_suspension(provider=node.provider, lifted_by=operator, now=at(5))
    # What an operator suspended by itself stays so.
    assert (status(node), status(own)) == (NodeStatus.ONLINE, NodeStatus.SUSPENDED)
    assert JoinToken.objects.get(pk=token.pk).used_at is None


@pytest.mark.django_db(transaction=True)
def test_a_node_that_joins_while_its_provider_is_suspended_is_not_on_sale():
    zone, provider, operator = market.zone(), market.provider(), builders.operator()
    _, secret = create_join_token(
        zone=zone, provider=provider, created_by=None, terms=ListingTerms(1), now=NOW
    )
    request = JoinRequest(token=secret, name="gpu-1", facts=build.facts())

    def join() -> str:
        try:
            return join_node(request=request, now=NOW).node_id
        except UserError as refused:
            return refused.code

    def suspend() -> str:
        return suspend_provider(
            provider=provider, suspended_by=operator, reason="A test.", now=NOW
        ).pk

    joined, _ = at_once([join, suspend])
    if joined == "provider_suspended":
        assert not Node.objects.exists()
    else:
        assert Node.objects.get(pk=joined).status == NodeStatus.SUSPENDED
    assert Provider.objects.get().suspended_at == NOW


def test_a_revoked_join_token_lists_no_node(node):
    token, secret = create_join_token(
        zone=node.zone, provider=node.provider, created_by=None, terms=ListingTerms(1), now=NOW
    )
    revoke_join_token(token=token, now=at(1))
    revoke_join_token(token=token, now=at(2))
    assert JoinToken.objects.get(pk=token.pk).revoked_at == at(1)
    with pytest.raises(UserError) as refused:
        join_node(request=JoinRequest(token=secret, name="b", facts=build.facts()), now=at(3))
    assert refused.value.code == "join_token_revoked"
    assert Node.objects.count() == 1


def test_revoked_credentials_do_not_open_the_market():
    zone, provider = market.zone(), market.provider()
    _, secret = create_join_token(
        zone=zone, provider=provider, created_by=None, terms=ListingTerms(1), now=NOW
    )
    request = JoinRequest(token=secret, name="gpu-1", facts=build.facts())
    reply = join_node(request=request, now=NOW)
    node = Node.objects.get()
    revoke_node_token(node=node, now=at(1))
    assert find_node_by_api_token(reply.api_token, now=at(1)) is None
    assert status(node) == NodeStatus.OFFLINE
    # The answer to the first join, asked for again, would hold the same credentials.
    with pytest.raises(UserError) as refused:
        join_node(request=request, now=at(2))
    assert refused.value.code == "join_token_revoked"
    back = join_again(node, now=at(3))
    assert (back.pk, back.status) == (node.pk, NodeStatus.JOINING)
