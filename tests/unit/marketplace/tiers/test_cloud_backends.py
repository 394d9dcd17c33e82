"""What only the cloud backends do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.conf import settings
from django.test import override_settings

from marketplace.fleet.models import Tier
from marketplace.tiers.provisioning import BackendFault, MachineOffer, get_backend
from marketplace.tiers.provisioning.cloud import AS_NODE, NODE_UID, get_market_tag, import_client
from marketplace.tiers.provisioning.modal import LIFETIME_S, parse_modal_offers
from marketplace.tiers.provisioning.skypilot import PRICES_KEPT_S, SkyPilotBackend
from tests.unit.marketplace.tiers.clouds import ClusterStatus, SkyServer
from tests.unit.marketplace.tiers.test_backend_contract import (
    IMAGE,
    ModalGround,
    SkyGround,
    launch,
    listed,
)


def test_skypilot_offers_the_lowest_price_of_each_enabled_cloud() -> None:
    assert SkyGround().backend().offers() == (
        MachineOffer("A100@aws/us-east-1", Tier.CONVENTIONAL, 3_673_100, 256.0),
        MachineOffer("A100@vast", Tier.MARKETPLACE, 740_000, 36.0),
    )


def test_prices_are_asked_for_again_only_after_a_while() -> None:
    server, passed = SkyServer(), [0.0]
    backend = SkyPilotBackend(
        sky=server.sky,
        sdk=server,
        tag="ours",
        image=IMAGE,
        gpus=("A100",),
        clock=lambda: passed[0],
    )
    first = backend.offers()
    passed[0] = PRICES_KEPT_S
    server.catalog = {}
    assert backend.offers() == first
    passed[0] = PRICES_KEPT_S + 1
    assert backend.offers() == ()
    assert server.counts["list_accelerators"] == 2


def test_skypilot_without_a_cloud_says_what_to_run() -> None:
    ground = SkyGround()
    ground.server.clouds = []
    with pytest.raises(BackendFault, match="no cloud enabled; run: sky check"):
        ground.backend().offers()


def test_skypilot_gets_a_gpu_an_image_and_the_market_s_label() -> None:
    ground = SkyGround()
    launch(ground.backend())
    resources = ground.server.tasks["ft-ours-mach_1"].resources
    assert resources is not None
    assert (resources.infra, resources.accelerators) == ("aws/us-east-1", {"A100": 1})
    assert resources.image_id == f"docker:{IMAGE}"
    assert resources.labels == {"finetender-market": "ours"}


def test_a_launch_that_has_no_cluster_yet_is_listed_and_can_be_called_off() -> None:
    ground = SkyGround()
    backend = ground.backend()
    launch(backend)
    assert [(one.machine_id, one.is_ready) for one in backend.machines()] == [("mach_1", False)]
    backend.terminate("mach_1")
    ground.settle()
    assert backend.machines() == ()
    assert "down" not in ground.server.counts


def test_a_cluster_half_made_when_its_launch_is_called_off_is_taken_down_once() -> None:
    ground = SkyGround()
    backend = ground.backend()
    launch(backend)
    ground.server.clusters["ft-ours-mach_1"] = ClusterStatus.INIT
    backend.terminate("mach_1")
    backend.terminate("mach_1")
    assert ground.server.counts["down"] == 1
    assert listed(backend) == ["mach_1"]
    ground.settle()
    assert backend.machines() == ()


def test_a_sandbox_runs_the_node_and_not_the_image_s_own_command() -> None:
    ground = ModalGround()
    launch(ground.backend())
    sandbox = ground.cloud.sandboxes[0]
    assert (sandbox.terms["image"].tag, sandbox.terms["image"].command_before) == (IMAGE, ())
    assert (sandbox.terms["gpu"], sandbox.terms["timeout"]) == ("A100", LIFETIME_S)
    assert sandbox.get_tags() == {"finetender-market": "ours", "finetender-machine": "mach_1"}


@pytest.mark.parametrize("word", ["A100", "A100=", "A100=cheap", "A100=-1", "=2.10"])
def test_a_price_that_cannot_be_read_is_named(word: str) -> None:
    with pytest.raises(BackendFault, match="write GPU=dollars an hour"):
        parse_modal_offers([word])


@pytest.mark.parametrize(("name", "module"), [("skypilot", "sky"), ("modal", "modal")])
def test_a_client_that_is_not_installed_is_asked_for_by_name(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Python itself does for a module that must not be imported.
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendFault, match=rf"'{module}' is not installed .*'\.\[cloud\]'"):
        get_backend(name)


def test_a_client_is_imported_by_its_whole_name() -> None:
    assert import_client("os.path") is sys.modules["os.path"]


@pytest.mark.parametrize(
    ("tag", "url", "expected"),
    [
        ("", "https://market.example", "market-example"),
        ("", "https://Market.Example:8443", "market-example-8443"),
        ("My Market!", "https://market.example", "my-market"),
        ("a" * 40, "https://market.example", "a" * 20),
    ],
)
def test_the_tag_is_the_market_s_address_unless_named(tag: str, url: str, expected: str) -> None:
    with override_settings(TIERS_TAG=tag, PUBLIC_URL=url):
        assert get_market_tag() == expected


def test_the_node_of_a_rented_machine_gives_root_up_before_it_starts() -> None:
    dockerfile = (settings.BASE_DIR / "docker" / "worker.Dockerfile").read_text()
    assert f"--gid {NODE_UID} finetender" in dockerfile
    assert f"--uid {NODE_UID} --gid {NODE_UID}" in dockerfile
    assert AS_NODE[0] == "setpriv"
    if os.geteuid() == 0:
        said = subprocess.run(
            [*AS_NODE, "sh", "-c", "id -u; id -g; id -G; echo $HOME"],
            check=True,
            capture_output=True,
            text=True,
        )
        assert said.stdout.split() == [*[str(NODE_UID)] * 3, "/tmp"]
