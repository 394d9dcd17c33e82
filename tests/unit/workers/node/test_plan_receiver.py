"""Plans from the market's HTTPS through a Celery worker, and a node's credentials on its disk."""

import dataclasses
import logging
import stat
import threading
from collections.abc import Iterator

import pytest
from celery import Celery

from tests.unit.workers.node.market_double import MarketDouble
from workers.node.celery_app import build_celery_app, register_tasks
from workers.node.credentials import (
    Credentials,
    NodeSettingsError,
    StateDir,
    find_default_state_dir,
    load_credentials,
    save_credentials,
)
from workers.node.market_client import MarketClient
from workers.node.plan_puller import PlanPuller
from workers.node.plan_receiver import PlanReceiver
from workers.protocol.job_spec import BaseModelRef
from workers.protocol.messages import TASK_RUN_SLOT, SlotPlan
from workers.protocol.plan_queue import PATH_NEXT_PLAN, SUPERSEDED
from workers.protocol.wire import to_json

PLAN = SlotPlan(node_id="node_1", slot=3, starts_at=0.0, ends_at=1.0)
CREDENTIALS = Credentials(
    market_url="https://market.example",
    name="box",
    node_id="node_1",
    api_token="secret-token",
    heartbeat_every_s=1.0,
    base_models=(BaseModelRef(name="tiny", source="bundled:finetender-tiny"),),
)


#: Of a market that nothing asks.
PULLER = PlanPuller(
    MarketClient("https://market.example"), node_id="node_1", refused=print, rotated=print
)


class TestTask:
    @pytest.fixture
    def offered(self):
        return []

    @pytest.fixture
    def app(self, offered) -> Celery:
        app = build_celery_app(queue="node.node_1", plans=PULLER)
        register_tasks(app, offer=offered.append)
        return app

    def test_a_plan_is_offered_as_the_protocols_value(self, app, offered):
        app.tasks[TASK_RUN_SLOT](plan=to_json(PLAN))
        assert offered == [PLAN]

    @pytest.mark.parametrize("plan", [None, 7, {}, {"node_id": "x"}, to_json(PLAN) | {"slot": "x"}])
    def test_a_plan_that_is_none_is_told_and_dropped(self, app, offered, plan, caplog):
        with caplog.at_level(logging.ERROR, logger="workers.node.celery_app"):
            app.tasks[TASK_RUN_SLOT](plan=plan)
        assert offered == []
        assert "a plan is not understood: SlotPlan" in caplog.text

    def test_only_json_is_taken_and_nobody_steers_from_afar(self, app):
        assert list(app.conf.accept_content) == ["json"]
        assert app.conf.worker_enable_remote_control is False
        assert app.conf.task_ignore_result is True
        # A node's process imports nothing of the market; this one may have, and then Celery
        # lends the market's shared tasks to every application.
        own = [name for name, task in app.tasks.items() if task.__module__.startswith("workers")]
        assert own == [TASK_RUN_SLOT]


class Node:
    """The plans part of a node's process, and what it was told."""

    def __init__(self, market: MarketDouble) -> None:
        self.client = MarketClient(market.url, token=market.token)
        self.offered: list[SlotPlan] = []
        self.tokens: list[str] = []
        self.refusals: list[str] = []
        self._changed = threading.Condition()
        self.receiver = PlanReceiver(
            CREDENTIALS,
            self.client,
            offer=lambda plan: self._note(self.offered, plan),
            refused=lambda reason, for_good: self._note(self.refusals, (reason, for_good)),
            rotated=lambda token: self._note(self.tokens, token),
        )

    def _note(self, where, value) -> None:
        with self._changed:
            where.append(value)
            self._changed.notify_all()

    def wait_until(self, condition) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 30)

    def close(self) -> None:
        self.receiver.close()
        self.client.close()


@pytest.fixture
def market() -> Iterator[MarketDouble]:
    market = MarketDouble()
    yield market
    market.close()


@pytest.fixture
def node(market) -> Iterator[Node]:
    node = Node(market)
    node.receiver.start()
    yield node
    node.close()


def plan(slot: int, revision: int = 1) -> SlotPlan:
    return dataclasses.replace(PLAN, slot=slot, revision=revision)


class TestReceiving:
    def test_plans_arrive_in_order_each_once(self, market, node):
        for number in (3, 4, 5):
            market.send(plan(number))
            node.wait_until(lambda number=number: len(node.offered) == number - 2)
        assert node.offered == [plan(3), plan(4), plan(5)]
        market.wait_until(lambda: len(market.plan_requests) == 4)
        held = [(asked.held_slot, asked.held_revision) for asked in market.plan_requests]
        assert held == [(None, 0), (3, 1), (4, 1), (5, 1)]

    def test_a_plan_whose_answer_was_lost_is_asked_for_again(self, market, node):
        lost = iter(["drop"])
        market.wait_until(lambda: market.plan_requests)
        market.trouble = lambda _, path: next(lost, None) if path == PATH_NEXT_PLAN else None
        market.send(plan(3))
        node.wait_until(lambda: len(node.offered) == 1)
        market.send(plan(4))
        node.wait_until(lambda: len(node.offered) == 2)
        assert node.offered == [plan(3), plan(4)]

    def test_a_market_that_fails_and_is_away_is_asked_until_it_answers(self, market, node):
        market.wait_until(lambda: market.plan_requests)
        answers = iter([503, "drop", 500])
        market.trouble = lambda _, path: next(answers, None) if path == PATH_NEXT_PLAN else None
        market.send(plan(3))
        market.send(plan(4))
        node.wait_until(lambda: node.offered and node.offered[-1] == plan(4))
        assert node.refusals == []

    def test_a_token_is_exchanged_when_the_market_asks_and_stored_before_it_is_used(
        self, market, node
    ):
        market.wait_until(lambda: market.plan_requests)
        with market.changed:
            market.rotate_token = True
            market.changed.notify_all()
        node.wait_until(lambda: node.tokens)
        market.send(plan(3))
        node.wait_until(lambda: node.offered)
        assert node.tokens == ["node-token-next"]
        assert node.refusals == []

    def test_a_process_whose_session_another_ends_is_told_and_asks_no_more(self, market, node):
        market.wait_until(lambda: market.plan_requests)
        second = Node(market)
        second.receiver.start()
        try:
            node.wait_until(lambda: node.refusals)
            market.send(plan(3))
            second.wait_until(lambda: second.offered)
        finally:
            second.close()
        assert node.refusals == [(f"The market says {SUPERSEDED}.", False)]
        assert (node.offered, second.offered, second.refusals) == ([], [plan(3)], [])


class TestCredentials:
    def test_they_are_kept_for_their_owner_alone(self, tmp_path):
        state = StateDir(tmp_path / "state")
        save_credentials(state, CREDENTIALS)
        assert load_credentials(state) == CREDENTIALS
        assert stat.S_IMODE(state.credentials.stat().st_mode) == 0o600
        assert stat.S_IMODE(state.path.stat().st_mode) == 0o700
        assert sorted(path.name for path in state.path.iterdir()) == ["cache", "node.json", "work"]

    def test_they_are_not_shown_in_logs(self):
        assert "secret-token" not in repr(CREDENTIALS)

    def test_a_file_others_can_read_is_refused(self, tmp_path):
        state = StateDir(tmp_path)
        save_credentials(state, CREDENTIALS)
        state.credentials.chmod(0o644)
        with pytest.raises(NodeSettingsError, match="chmod 600"):
            load_credentials(state)

    def test_a_node_that_never_joined_is_told_how(self, tmp_path):
        with pytest.raises(NodeSettingsError, match="python -m workers join"):
            load_credentials(StateDir(tmp_path))

    @pytest.mark.parametrize("text", ["", "{", '{"node_id": 1}', "[]"])
    def test_a_damaged_file_is_refused(self, tmp_path, text):
        state = StateDir(tmp_path)
        save_credentials(state, CREDENTIALS)
        state.credentials.write_text(text)
        with pytest.raises(NodeSettingsError, match="Join the market again"):
            load_credentials(state)

    def test_a_directory_that_cannot_be_made_is_refused(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(NodeSettingsError, match="--state-dir"):
            StateDir(tmp_path / "file" / "state").prepare()

    def test_the_environment_chooses_the_directory(self, monkeypatch, tmp_path):
        monkeypatch.setenv("FINETENDER_STATE_DIR", str(tmp_path))
        assert find_default_state_dir() == tmp_path
        monkeypatch.delenv("FINETENDER_STATE_DIR")
        monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
        assert str(find_default_state_dir()) == "/var/state/finetender-node"
