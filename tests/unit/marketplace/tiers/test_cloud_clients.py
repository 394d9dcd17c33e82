"""The small clouds of these tests take no call that the clients themselves would not take."""

from __future__ import annotations

import inspect
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.marketplace.tiers import clouds
from tests.unit.marketplace.tiers.clouds import ModalCloud, ModalImage, ModalSandbox, SkyServer

ROOT = Path(__file__).parents[4]
RECORDED = {
    package: json.loads((ROOT / "tests" / "data" / "clouds" / f"{package}.json").read_text())
    for package in ("modal", "skypilot")
}
CALLS: dict[str, Any] = RECORDED["modal"]["calls"] | RECORDED["skypilot"]["calls"]
MODAL = ModalCloud().module
STAND_INS = {
    "modal.App.lookup": MODAL.App.lookup,
    "modal.Image.entrypoint": ModalImage.entrypoint,
    "modal.Image.from_registry": lambda tag: ModalImage(tag),
    "modal.Sandbox.create": MODAL.Sandbox.create,
    "modal.Sandbox.get_tags": ModalSandbox.get_tags,
    "modal.Sandbox.list": MODAL.Sandbox.list,
    "modal.Sandbox.terminate": ModalSandbox.terminate,
    "sky.Task": clouds.Task,
    "sky.Resources": clouds.Resources,
    "sky.catalog.common.InstanceTypeInfo": clouds.InstanceTypeInfo,
    **{
        f"sky.client.sdk.{name}": getattr(SkyServer, name)
        for name in (
            *("api_cancel", "api_status", "down", "enabled_clouds", "get"),
            *("launch", "list_accelerators", "status"),
        )
    },
}


#: Calls whose first argument the market gives without its name.
GIVEN_BY_PLACE = {
    *("modal.App.lookup", "modal.Image.entrypoint", "modal.Image.from_registry"),
    *("sky.client.sdk.api_cancel", "sky.client.sdk.down", "sky.client.sdk.get"),
    *("sky.client.sdk.launch", "modal.Sandbox.create"),
}


def test_the_clients_are_pinned_to_what_was_recorded() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["cloud"] == [
        f"{package}=={RECORDED[package]['version']}" for package in ("modal", "skypilot")
    ]


@pytest.mark.parametrize("name", sorted(STAND_INS))
def test_a_stand_in_takes_what_the_client_takes_in_its_order(name: str) -> None:
    real = CALLS[name]["parameters"]
    taken = inspect.signature(STAND_INS[name]).parameters.values()
    own = [
        f"*{one.name}" if one.kind is one.VAR_POSITIONAL else one.name
        for one in taken
        if one.name != "self"
    ]
    assert set(own) <= set(real)
    # The one that is given without its name comes first there, too.
    if name in GIVEN_BY_PLACE:
        assert own[0] == real[0]


def test_every_recorded_call_has_a_stand_in() -> None:
    assert {name for name, one in CALLS.items() if "parameters" in one} - set(STAND_INS) == {
        "modal.Secret.from_dict"
    }
    assert CALLS["modal.Secret.from_dict"]["parameters"] == ["env_dict"]


def test_states_and_errors_are_the_clients_own() -> None:
    for kind in (clouds.ClusterStatus, clouds.StatusRefreshMode):
        members = CALLS[f"sky.{kind.__name__}"]["members"]
        assert {member.name for member in kind} <= set(members)
    assert "Error" in CALLS["modal.exception.AlreadyExistsError"]["bases"]
    assert issubclass(clouds.AlreadyExistsError, clouds.ModalError)
