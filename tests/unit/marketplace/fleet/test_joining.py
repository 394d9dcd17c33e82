"""How nodes come to be listed, and who may not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from marketplace.common.errors import UserError
from marketplace.console.join_progress import load_joining
from marketplace.fleet.join_progress import describe_steps
from marketplace.fleet.memory import compute_memory_demand
from marketplace.fleet.models import Ask, JoinToken, Node, NodeStatus, Tier
from marketplace.fleet.selectors import (
    build_base_model_ref,
    find_node_by_api_token,
    get_work_costs,
    load_rates,
)
from marketplace.fleet.services import (
    ListingTerms,
    ask_node_to_leave,
    create_join_token,
    drain_node,
    join_node,
    list_join_models,
    note_join_step,
    record_heartbeat,
    retire_node,
    revoke_node_token,
    set_node_ask,
    set_node_availability,
    sweep_offline_nodes,
    undrain_node,
)
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.job_builders import at
from tests.unit.marketplace.common.threads import at_once
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.joining import PROTOCOL_LEAST, RELEASE, JoinStep, JoinStepReport
from workers.protocol.messages import (
    PROTOCOL_VERSION,
    Heartbeat,
    JoinModelsRequest,
    JoinReply,
    JoinRequest,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def provider():
    return market.provider()


def token(zone, provider, **more) -> str:
    terms = {name: more.pop(name) for name in ListingTerms.__slots__ if name in more}
    more = {"created_by": None, "now": NOW} | more
    listed = ListingTerms(**{"ask_micros": 400_000} | terms)
    return create_join_token(zone=zone, provider=provider, terms=listed, **more)[1]


def join(secret: str, *, name: str = "gpu-1", now=NOW, held: str = "", **facts) -> JoinReply:
    request = JoinRequest(token=secret, name=name, facts=build.facts(**facts), held_token=held)
    return join_node(request=request, now=now)


def asks_for_models(secret: str, *, least: int = PROTOCOL_LEAST, most: int = PROTOCOL_VERSION):
    return list_join_models(request=JoinModelsRequest(secret, least, most), now=NOW)


def refused(call) -> str:
    """The code of the refusal, which must leave neither a node nor a used token."""
    nodes = list(Node.objects.order_by("pk").values())
    used = JoinToken.objects.filter(used_at__isnull=False).count()
    with pytest.raises(UserError) as error:
        call()
    assert list(Node.objects.order_by("pk").values()) == nodes
    assert JoinToken.objects.filter(used_at__isnull=False).count() == used
    return error.value.code


def asks_of(node):
    """What the node asked, and since when."""
    return list(Ask.objects.filter(node=node).order_by("pk").values_list("ask_micros", "set_at"))


def test_a_node_joins_with_its_terms_its_measures_and_credentials_of_its_own(zone, provider):
    secret = token(
        zone,
        provider,
        tier=Tier.CONVENTIONAL,
        available_from_at=at(5),
        available_until_at=at(5000),
    )

    reply = join(secret)

    node = Node.objects.get()
    assert reply.node_id == node.pk
    assert reply.heartbeat_every_s == zone.heartbeat_every_s
    assert [model.name for model in reply.base_models] == ["tiny"]
    assert find_node_by_api_token(reply.api_token, now=NOW) == node
    assert reply.api_token not in str(Node.objects.values().get())
    assert (node.status, node.tier, node.ask_micros) == (
        *(NodeStatus.JOINING, Tier.CONVENTIONAL),
        400_000,
    )
    assert (node.available_from_at, node.available_until_at) == (at(5), at(5000))
    # Four jobs together did 40 samples a second; the slot has ten.
    assert (node.compute_capacity, node.gpu_type_id) == (400.0, "cpu")
    # Without a pack of 4,096 tokens, what its dropout keeps, and what a process has besides.
    assert node.memory_gb == pytest.approx(8.0 - 0.087130112 - 0.002097152 - 0.056, abs=1e-9)
    assert load_rates(zone) == {"cpu": 100.0}
    assert asks_of(node) == [(400_000, NOW)]


def test_the_models_to_measure_are_told_to_the_holder_of_a_token(zone, provider):
    told = asks_for_models(token(zone, provider))
    (model,) = told.base_models
    assert (model.name, model.source, told.version) == ("tiny", "/nowhere", PROTOCOL_VERSION)
    assert refused(lambda: asks_for_models("ftjoin_wrong")) == "unknown_join_token"


def test_a_join_whose_answer_was_lost_gives_the_same_answer_again(zone, provider):
    secret = token(zone, provider)
    first = join(secret)
    assert join(secret, now=at(60)) == first
    assert Node.objects.count() == 1


def test_another_machine_cannot_use_a_used_token(zone, provider):
    secret = token(zone, provider)
    join(secret)
    assert refused(lambda: join(secret, hostname="gpu-2")) == "join_token_used"
    assert refused(lambda: join(secret, name="gpu-2")) == "join_token_used"


def test_a_used_token_is_refused_before_the_self_test(zone, provider):
    secret = token(zone, provider)

    def asks(name: str, hostname: str) -> Any:
        request = JoinModelsRequest(secret, PROTOCOL_LEAST, PROTOCOL_VERSION, name, hostname)
        return list_join_models(request=request, now=NOW)

    asks("gpu-2", "gpu-2")
    join(secret, name="gpu-1-3")
    assert refused(lambda: asks("gpu-2", "gpu-2")) == "join_token_used"
    assert refused(lambda: asks("gpu-1-3", "gpu-2")) == "join_token_used"
    # It joined, perhaps under another name since its own was taken, and its answer was lost.
    for name in ("gpu-1", "gpu-1-3"):
        assert asks(name, "gpu-1").base_models
    # A node of an earlier release does not say who it is.
    assert asks_for_models(secret).base_models


def test_a_token_that_expired_or_never_was_lists_nothing(zone, provider):
    secret = token(zone, provider, life=timedelta(minutes=5))
    assert refused(lambda: join(secret, now=at(300))) == "join_token_expired"
    assert refused(lambda: join("ftjoin_guess")) == "unknown_join_token"
    join(secret, now=at(299))


def test_a_provider_has_each_name_once_while_that_node_has_credentials(zone, provider):
    first = join(token(zone, provider))
    second = token(zone, provider)
    taken = "node_name_taken"
    assert refused(lambda: join(second, hostname="gpu-2")) == taken
    # Not by its host's name either, and not when it is silent: that proves nothing.
    assert refused(lambda: join(second)) == taken
    assert refused(lambda: join(second, now=at(3600))) == taken
    assert refused(lambda: join(second, held="ftnode_guess")) == taken
    assert find_node_by_api_token(first.api_token, now=NOW) is not None
    join(second, hostname="gpu-2", name="gpu-2")
    join(token(zone, market.provider()), hostname="gpu-3")
    assert sorted(Node.objects.values_list("name", flat=True)) == ["gpu-1", "gpu-1", "gpu-2"]


@pytest.mark.parametrize("seconds", [1, 3600])
def test_a_machine_that_shows_its_token_takes_its_node_back(zone, provider, seconds):
    old = join(token(zone, provider))
    secret = token(zone, provider, ask_micros=7, now=at(seconds))
    new = join(secret, now=at(seconds), hostname="its-new-host", held=old.api_token)
    assert new.node_id == old.node_id
    assert find_node_by_api_token(old.api_token, now=NOW) is None
    node = find_node_by_api_token(new.api_token, now=NOW)
    assert node is not None
    assert (node.ask_micros, asks_of(node)) == (7, [(400_000, NOW), (7, at(seconds))])


def test_a_node_without_credentials_is_taken_back_under_its_name(zone, provider):
    first = join(token(zone, provider))
    revoke_node_token(node=Node.objects.get(), now=at(1))
    again = join(token(zone, provider, now=at(2)), now=at(2))
    retire_node(node=Node.objects.get(), now=at(3))
    last = join(token(zone, provider, now=at(4)), now=at(4), hostname="elsewhere")
    assert first.node_id == again.node_id == last.node_id


def test_a_token_lists_each_gpu_of_a_machine_once_and_no_more(zone, provider):
    secret = token(zone, provider, nodes=2)
    first, second = join(secret), join(secret, name="gpu-2")
    assert join(secret) == first
    assert join(secret, name="gpu-2", now=at(9)) == second
    assert refused(lambda: join(secret, name="gpu-3")) == "join_token_used"
    assert Node.objects.count() == 2
    assert first.api_token != second.api_token
    revoke_node_token(node=Node.objects.get(name="gpu-2"), now=at(10))
    # Its answers give no revoked credentials back.
    assert refused(lambda: join(secret, name="gpu-2")) == "join_token_revoked"


@pytest.mark.parametrize("nodes", [0, 17])
def test_a_token_for_no_gpu_or_too_many_is_refused(zone, provider, nodes):
    assert refused(lambda: token(zone, provider, nodes=nodes)) == "invalid_node_count"


def test_a_node_of_another_release_hears_which_one_to_install(zone, provider):
    secret = token(zone, provider)
    # One that does not say its version speaks 2.
    for least, most in ((0, 0), (1, PROTOCOL_LEAST - 1), (PROTOCOL_VERSION + 1, 99)):
        with pytest.raises(UserError, match=rf"Install release {RELEASE}: pip install") as told:
            asks_for_models(secret, least=least, most=most)
        assert told.value.code == "version_not_spoken"
    # A later node that still speaks ours is spoken with in ours.
    assert asks_for_models(secret, least=PROTOCOL_LEAST, most=99).version == PROTOCOL_VERSION
    assert refused(lambda: join(secret, protocol_version=2)) == "version_not_spoken"


def report(secret: str, step: JoinStep, now=NOW, **more) -> dict[str, Any]:
    said = JoinStepReport(**{"token": secret, "name": "gpu-1", "step": step} | more)
    note_join_step(report=said, now=now)
    return JoinToken.objects.get().progress


def test_a_provider_sees_how_far_its_machine_is(zone, provider):
    secret = token(zone, provider)
    report(secret, JoinStep.DRIVER, share=1.0, detail="cuda, driver 580")
    found = report(secret, JoinStep.BASE, at(4), share=7.0, detail="16 GB\x00\ud800" + "x" * 999)
    assert list(found) == ["gpu-1"]
    assert set(found["gpu-1"]) == {"driver", "base"}
    base = found["gpu-1"]["base"]
    assert (base["share"], base["failed"], len(base["detail"])) == (1.0, False, 300)
    assert base["detail"].startswith("16 GB x")
    states = [step.state for step in describe_steps(found["gpu-1"], None)]
    assert states == ["done", "done", "done", "now", "ahead", "ahead"]
    report(secret, JoinStep.BASE, failed=True, detail="no room")
    join(secret)
    states = [step.state for step in load_joining(JoinToken.objects.get())["machines"][0].steps]
    assert states == ["done"] * 5 + ["now"]
    Node.objects.update(status=NodeStatus.ONLINE)
    shown = load_joining(JoinToken.objects.get())
    assert (shown["on_sale"], shown["wanted"]) == (1, 1)


def test_a_stranger_writes_no_progress_and_names_do_not_pile_up(zone, provider):
    secret = token(zone, provider)
    assert refused(lambda: report("ftjoin_guess", JoinStep.DISK)) == "unknown_join_token"
    assert refused(lambda: report(secret, JoinStep.DISK, name="<b>")) == "invalid_node"
    assert refused(lambda: report(secret, JoinStep.DISK, at(90_000))) == "join_token_expired"
    assert JoinToken.objects.get().progress == {}
    for number in range(40):
        progress = report(secret, JoinStep.DISK, at(number), name=f"n{number}")
    assert set(progress) == {f"n{number}" for number in range(24, 40)}


def test_a_token_for_a_known_node_keeps_its_terms(zone, provider):
    join(token(zone, provider))
    node = Node.objects.get()
    retire_node(node=node, now=NOW)
    join(token(zone, provider, node=node, ask_micros=1), name="whatever", hostname="elsewhere")
    node.refresh_from_db()
    assert (node.status, node.left_at, node.ask_micros) == (NodeStatus.JOINING, None, 400_000)
    other = market.provider()
    assert refused(lambda: token(zone, other, node=node)) == "not_your_node"


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"speeds": ()}, "measured no speed of tiny"),
        ({"speeds": (build.measurement(base_model="other"),)}, "measured no speed of tiny"),
        ({"speeds": (build.measurement(samples_per_s=0.0),)}, "not positive"),
        ({"speeds": (build.measurement(samples_per_s=-1.0),)}, "not positive"),
        ({"speeds": (build.measurement(batch_size=0),)}, "not positive"),
        ({"speeds": (build.measurement(batch_size=2**40),)}, "beyond a million"),
        ({"speeds": (build.measurement(job_memory_gb=-1.0),)}, "negative amount"),
        ({"speeds": (build.measurement(jobs=9),)}, "4 jobs or fewer"),
        ({"speeds": (build.measurement(samples_per_s=1e10),)}, "than a machine trains"),
        ({"work": (build.work_measurement(steps=0),)}, "counts cannot be"),
        ({"work": (build.work_measurement(tokens=10**16),)}, "counts cannot be"),
        ({"work": (build.work_measurement(seconds=0.0),)}, "not positive"),
        ({"device": "tpu"}, "'tpu' is no kind of device"),
        ({"memory_gb": 0.0}, "found no memory"),
        ({"memory_gb": 1.0}, "are too little"),
        ({"speeds": (build.measurement(base_memory_gb=8.5),)}, "are too little"),
        ({"gpu_type": "A100 ; drop table"}, "does not name a GPU type"),
        ({"gpu_type": "x" * 65}, "does not name a GPU type"),
        ({"speeds": (build.measurement(base_sha256="x" * 64),)}, "names no hash"),
    ],
)
def test_an_impossible_self_test_is_refused_and_changes_no_promise(zone, provider, facts, word):
    secret = token(zone, provider)
    with pytest.raises(UserError, match=word):
        join(secret, **facts)
    assert refused(lambda: join(secret, **facts)) == "invalid_node"


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65, "-x"])
def test_a_name_that_is_none_is_refused(zone, provider, name):
    assert refused(lambda: join(token(zone, provider), name=name)) == "invalid_node"


def test_memory_the_base_model_takes_beyond_the_zones_figure_is_not_for_sale(zone, provider):
    join(token(zone, provider))
    speeds = (build.measurement(base_memory_gb=1.75, jobs=4),)
    join(token(zone, provider), name="wide", hostname="wide", speeds=speeds)
    memory = dict(Node.objects.values_list("name", "memory_gb"))
    assert memory["wide"] == pytest.approx(memory["gpu-1"] - 0.75, abs=1e-9)


def test_a_measured_job_changes_neither_what_is_for_sale_nor_what_jobs_are_sold(zone, provider):
    sold = compute_memory_demand(zone=zone, adapter=AdapterSpec(rank=16))
    honest = join(token(zone, provider), speeds=(build.measurement(job_memory_gb=sold / 2),))
    greedy = (build.measurement(job_memory_gb=7.5),)
    wide = join(token(zone, provider), name="wide", hostname="wide", speeds=greedy)
    memory = dict(Node.objects.values_list("pk", "memory_gb"))
    assert memory[wide.node_id] == memory[honest.node_id]
    assert compute_memory_demand(zone=zone, adapter=AdapterSpec(rank=16)) == sold


def test_each_node_is_sold_at_its_own_speed(zone, provider):
    join(token(zone, provider))
    slow = (build.measurement(jobs=4, samples_per_s=20.0),)
    join(token(zone, provider), name="slow", hostname="slow", speeds=slow)
    quick = (build.measurement(jobs=4, samples_per_s=90.0),)
    join(token(zone, provider), name="quick", hostname="quick", speeds=quick)
    capacities = dict(Node.objects.values_list("name", "compute_capacity"))
    assert capacities == {"gpu-1": 400.0, "slow": 200.0, "quick": 900.0}
    Node.objects.update(status=NodeStatus.ONLINE)
    # A quarter of what the middle one of them does.
    assert load_rates(zone) == {"cpu": 100.0}


def test_the_first_node_sets_what_work_costs_and_no_later_one_changes_it(provider):
    zone = market.zone(work_costs={})
    prior = get_work_costs(zone)
    join(token(zone, provider))
    zone.refresh_from_db()
    assert get_work_costs(zone) == prior
    join(token(zone, provider), name="b", hostname="b", work=(build.work_measurement(),) * 9)
    zone.refresh_from_db()
    assert get_work_costs(zone) == prior


def test_the_first_node_pins_the_base_model_and_another_one_is_refused(zone, provider):
    def has(letter):
        return (build.measurement(base_sha256=64 * letter),)

    join(token(zone, provider), name="first", speeds=has("a"))
    zone.refresh_from_db()
    assert zone.base_model_sha256 == 64 * "a"
    assert build_base_model_ref(zone).sha256 == 64 * "a"
    join(token(zone, provider), name="second", hostname="gpu-2", speeds=has("a"))
    secret = token(zone, provider)
    other = {"name": "third", "hostname": "gpu-3", "speeds": has("b")}
    assert refused(lambda: join(secret, **other)) == "other_base_model"
    zone.refresh_from_db()
    assert zone.base_model_sha256 == 64 * "a"
    assert Node.objects.count() == 2


@pytest.mark.parametrize("ask", [-1, 1_000_000_001])
def test_an_ask_out_of_bounds_is_refused(zone, provider, ask):
    assert refused(lambda: token(zone, provider, ask_micros=ask)) == "invalid_ask"


def test_an_availability_that_is_over_is_refused(zone, provider):
    for terms in (
        {"available_until_at": NOW},
        {"available_from_at": at(9), "available_until_at": at(9)},
    ):
        assert refused(lambda terms=terms: token(zone, provider, **terms)) == "invalid_availability"


def test_an_ask_changes_from_its_moment_on_and_its_history_stays(zone):
    node, _ = build.joined(zone)
    set_node_ask(node=node, ask_micros=500_000, set_by=None, now=at(10))
    set_node_ask(node=node, ask_micros=500_000, set_by=None, now=at(20))
    node.refresh_from_db()
    assert node.ask_micros == 500_000
    assert asks_of(node) == [(400_000, NOW), (500_000, at(10))]


def test_availability_can_be_changed(zone):
    node, _ = build.joined(zone)
    set_node_availability(node=node, available_from_at=None, available_until_at=at(100), now=NOW)
    assert Node.objects.get().available_until_at == at(100)
    with pytest.raises(UserError):
        set_node_availability(
            node=node, available_from_at=None, available_until_at=at(5), now=at(6)
        )


def beat(node: Node, now, **more) -> NodeStatus:
    heartbeat = Heartbeat(node_id=node.pk, at=0.0, **more)
    return NodeStatus(record_heartbeat(node=node, heartbeat=heartbeat, now=now).status)


def test_a_node_goes_by_its_own_heartbeats_until_its_provider_says_otherwise(zone):
    node, _ = build.joined(zone)
    Node.objects.update(status=NodeStatus.JOINING)
    assert beat(node, at(1)) == NodeStatus.ONLINE
    assert beat(node, at(2), draining=True) == NodeStatus.STOPPING
    assert beat(node, at(3)) == NodeStatus.ONLINE
    assert sweep_offline_nodes(now=at(32)) == ()
    assert sweep_offline_nodes(now=at(33)) == (node.pk,)
    assert sweep_offline_nodes(now=at(34)) == ()
    assert beat(node, at(40)) == NodeStatus.ONLINE
    drain_node(node=node, now=at(41))
    assert beat(node, at(42)) == NodeStatus.DRAINING
    undrain_node(node=node, now=at(43))
    assert Node.objects.get().status == NodeStatus.ONLINE
    with pytest.raises(UserError, match="Only a drained node"):
        undrain_node(node=node, now=at(44))


def test_a_drained_node_stays_drained_through_silence_until_it_is_put_back(zone):
    node, _ = build.joined(zone)
    drain_node(node=node, now=at(1))
    assert sweep_offline_nodes(now=at(80)) == (node.pk,)
    assert (Node.objects.get().status, Node.objects.get().left_at) == (NodeStatus.OFFLINE, None)
    assert beat(node, at(81)) == NodeStatus.DRAINING
    assert beat(node, at(82), draining=True) == NodeStatus.DRAINING
    assert beat(node, at(83)) == NodeStatus.DRAINING
    assert undrain_node(node=node, now=at(84)).status == NodeStatus.ONLINE
    drain_node(node=node, now=at(85))
    assert sweep_offline_nodes(now=at(150)) == (node.pk,)
    assert undrain_node(node=node, now=at(151)).status == NodeStatus.OFFLINE
    assert beat(node, at(152)) == NodeStatus.ONLINE


def test_a_node_leaves_only_when_it_was_asked_to(zone):
    node, _ = build.joined(zone)
    beat(node, at(1))
    assert ask_node_to_leave(node=node, now=at(2)).status == NodeStatus.DRAINING
    assert undrain_node(node=node, now=at(3)).leave_asked_at is None
    ask_node_to_leave(node=node, now=at(4))
    assert ask_node_to_leave(node=node, now=at(5)).leave_asked_at == at(4)
    assert sweep_offline_nodes(now=at(80)) == (node.pk,)
    assert (Node.objects.get().status, Node.objects.get().left_at) == (NodeStatus.LEFT, at(80))
    assert beat(node, at(81)) == NodeStatus.LEFT
    for change in (drain_node, undrain_node, ask_node_to_leave):
        with pytest.raises(UserError, match="left already"):
            change(node=node, now=at(82))


def test_a_silent_node_leaves_at_once(zone):
    node, _ = build.joined(zone)
    assert ask_node_to_leave(node=node, now=at(80)).status == NodeStatus.LEFT
    assert Node.objects.get().left_at == at(80)


def test_a_node_that_never_beat_after_joining_goes_offline(zone):
    node, _ = build.joined(zone)
    Node.objects.update(status=NodeStatus.JOINING)
    assert sweep_offline_nodes(now=at(30)) == (node.pk,)


@pytest.mark.django_db(transaction=True)
def test_a_token_used_twice_at_once_lists_one_node():
    zone = market.zone()
    secret = token(zone, market.provider())
    replies = at_once([lambda: join(secret)] * 3)
    assert len(set(replies)) == 1
    assert Node.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_two_machines_with_one_name_at_once_one_is_listed():
    zone, provider = market.zone(), market.provider()
    secrets = [token(zone, provider), token(zone, provider)]
    results = at_once(
        [
            lambda: join(secrets[0], hostname="one"),
            lambda: join(secrets[1], hostname="two"),
        ]
    )
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "JoinReply"]
    assert Node.objects.count() == 1


def test_facts_are_kept_as_they_were_told(zone):
    node, _ = build.joined(zone)
    assert node.facts["cores"] == 4
    assert len(node.facts["speeds"]) == 2
    assert replace(build.facts(), cores=4) == build.facts()
