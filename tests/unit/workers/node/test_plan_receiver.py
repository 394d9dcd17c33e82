"""Plans over Celery, and the files a node keeps its credentials in."""

import dataclasses
import logging
import stat
import threading

import pytest
from celery import Celery

from workers.node.celery_app import build_celery_app
from workers.node.celery_tasks import register_tasks
from workers.node.credentials import (
    Credentials,
    SettingsError,
    StateDir,
    default_state_dir,
    load_credentials,
    save_credentials,
)
from workers.node.plan_receiver import PlanReceiver
from workers.protocol import TASK_RUN_SLOT, BaseModelRef, SlotPlan
from workers.protocol.wire import to_json

PLAN = SlotPlan(node_id="node_1", slot=3, starts_at=0.0, ends_at=1.0)
CREDENTIALS = Credentials(
    market_url="https://market.example",
    name="box",
    node_id="node_1",
    api_token="secret-token",
    broker_url="memory://",
    queue="node.node_1",
    heartbeat_every_s=1.0,
    base_models=(BaseModelRef(name="tiny", source="bundled:finetender-tiny"),),
)


class TestTask:
    @pytest.fixture
    def offered(self):
        return []

    @pytest.fixture
    def app(self, offered) -> Celery:
        app = build_celery_app(broker_url="memory://", queue="node.node_1")
        register_tasks(app, offer=offered.append)
        return app

    def test_a_plan_is_offered_as_the_protocols_value(self, app, offered):
        app.tasks[TASK_RUN_SLOT](plan=to_json(PLAN))
        assert offered == [PLAN]

    @pytest.mark.parametrize("plan", [None, 7, {}, {"node_id": "x"}, to_json(PLAN) | {"x": 1}])
    def test_a_plan_that_is_none_is_told_and_dropped(self, app, offered, plan, caplog):
        with caplog.at_level(logging.ERROR, logger="workers.node.celery_tasks"):
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


def test_plans_sent_by_name_arrive_in_order():
    received: list[SlotPlan] = []
    arrived = threading.Event()

    def offer(plan: SlotPlan) -> None:
        received.append(plan)
        if plan.slot == 5:
            arrived.set()

    receiver = PlanReceiver(CREDENTIALS, offer=offer)
    receiver.start()
    try:
        assert receiver.ready.wait(30)
        sender = Celery("market", broker="memory://", set_as_current=False)
        for slot in (3, 4, 5):
            plan = to_json(dataclasses.replace(PLAN, slot=slot))
            sender.send_task(TASK_RUN_SLOT, kwargs={"plan": plan}, queue="node.node_1")
        assert arrived.wait(30)
    finally:
        receiver.close()
    assert [plan.slot for plan in received] == [3, 4, 5]


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
        with pytest.raises(SettingsError, match="chmod 600"):
            load_credentials(state)

    def test_a_node_that_never_joined_is_told_how(self, tmp_path):
        with pytest.raises(SettingsError, match="python -m workers join"):
            load_credentials(StateDir(tmp_path))

    @pytest.mark.parametrize("text", ["", "{", '{"node_id": 1}', "[]"])
    def test_a_damaged_file_is_refused(self, tmp_path, text):
        state = StateDir(tmp_path)
        save_credentials(state, CREDENTIALS)
        state.credentials.write_text(text)
        with pytest.raises(SettingsError, match="Join the market again"):
            load_credentials(state)

    def test_a_directory_that_cannot_be_made_is_refused(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(SettingsError, match="--state-dir"):
            StateDir(tmp_path / "file" / "state").prepare()

    def test_the_environment_chooses_the_directory(self, monkeypatch, tmp_path):
        monkeypatch.setenv("FINETENDER_STATE_DIR", str(tmp_path))
        assert default_state_dir() == tmp_path
        monkeypatch.delenv("FINETENDER_STATE_DIR")
        monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
        assert str(default_state_dir()) == "/var/state/finetender-node"
