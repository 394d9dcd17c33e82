"""The operator's page of work that is done later."""

from __future__ import annotations

import pytest
from django.test import Client

from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.models import DurableWork, WorkState
from tests import builders
from tests.builders import NOW
from tests.pages import read_text

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(builders.operator())
    return client


@pytest.fixture
def failed() -> DurableWork:
    enqueue_work(NewWork("tests.note", "note_1", due_at=NOW), NewWork("tests.note", "b", NOW))
    failed = DurableWork.objects.get(key="note_1")
    failed.state, failed.attempts, failed.last_error = WorkState.FAILED, 3, "ValueError: no"
    failed.save()
    return failed


def test_the_operator_sees_what_failed_and_has_it_tried_again(operator, failed) -> None:
    text = read_text(operator.get("/operator/background"))
    assert "tests.note 1 1 0 1" in text
    assert "tests.note note_1 3 attempts: ValueError: no given up" in text
    answer = operator.post(f"/operator/background/{failed.pk}", follow=True)
    assert "It is tried again now." in answer.content.decode()
    failed.refresh_from_db()
    assert (failed.state, failed.attempts) == (WorkState.WAITING, 0)
    assert failed.due_at > NOW


def test_work_that_is_done_or_never_failed_is_left_alone(operator, failed) -> None:
    other = DurableWork.objects.get(key="b")
    for work_id in (other.pk, failed.pk + 999):
        answer = operator.post(f"/operator/background/{work_id}", follow=True)
        assert "It is done by now, or a worker has it." in answer.content.decode()
    other.refresh_from_db()
    assert other.due_at == NOW


def test_only_operators_see_and_change_it(client: Client, failed) -> None:
    client.force_login(builders.user())
    assert client.get("/operator/background").status_code == 403
    assert client.post(f"/operator/background/{failed.pk}").status_code == 403
    failed.refresh_from_db()
    assert failed.state == WorkState.FAILED
