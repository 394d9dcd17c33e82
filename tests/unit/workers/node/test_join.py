"""Joining a market: a real self-test on the bundled model, real HTTP, real files."""

import re
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.unit.workers.node.market_double import TINY
from workers.node import base_files, join, self_test
from workers.node.credentials import StateDir, load_credentials
from workers.node.process import EXIT_SETTINGS, lock_state_dir
from workers.node.run import main as run_main
from workers.node.self_test import (
    SpeedCase,
    count_usable_cores,
    measure_node,
    normalize_gpu_name,
)
from workers.protocol.messages import PROTOCOL_VERSION
from workers.protocol.model_shape import BasePart
from workers.protocol.node_facts import NodeFacts, SpeedMeasurement
from workers.runtime.memory_plan import find_device_limit_gb
from workers.runtime.work_timing import TimedRows

ONE_CASE = (SpeedCase(2, 0.05, 2),)
#: What an earlier join measured of this machine.
FACTS = NodeFacts(
    hostname=socket.gethostname(),
    device="cpu",
    gpu_type="cpu",
    gpu_count=0,
    memory_gb=4.0,
    cores=2,
    torch_version=torch.__version__,
    protocol_version=PROTOCOL_VERSION,
    speeds=(SpeedMeasurement("tiny", 8, 64, 1, 10.0, 640.0, 0.01, 0.02),),
)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def joining(market, folder, *more: str) -> int:
    arguments = ["--url", market.url, "--state-dir", str(folder), "--device", "cpu", *more]
    return join.main(arguments)


def test_joining_measures_registers_and_keeps_the_credentials(market, tmp_path, measured, capsys):
    assert joining(market, tmp_path / "s", "--token", "join-token", "--name", "box-1") == 0
    (request,) = market.joins
    assert (request.token, request.name) == ("join-token", "box-1")
    facts = request.facts
    assert (facts.device, facts.gpu_type, facts.gpu_count) == ("cpu", "cpu", 0)
    assert facts.protocol_version == PROTOCOL_VERSION
    assert facts.cores == count_usable_cores()
    assert facts.memory_gb == pytest.approx(find_device_limit_gb(torch.device("cpu")), abs=0.001)
    (speed,) = facts.speeds
    assert (speed.base_model, speed.batch_size, speed.sequence_length, speed.jobs) == (
        "tiny",
        2,
        25,
        2,
    )
    assert speed.samples_per_s > 0
    assert speed.tokens_per_s == pytest.approx(25 * speed.samples_per_s, rel=0.01)
    assert 0.005 < speed.base_memory_gb < 0.02
    assert speed.job_memory_gb > 0
    state = StateDir(tmp_path / "s")
    credentials = load_credentials(state)
    assert credentials.node_id == "node_1"
    assert credentials.market_url == market.url
    assert credentials.memory_gb == facts.memory_gb
    assert stat.S_IMODE(state.credentials.stat().st_mode) == 0o600
    assert "Joined as box-1 (node_1)." in capsys.readouterr().out


def test_the_market_hears_of_each_step_and_of_why_one_failed(
    market, tmp_path, measured, monkeypatch
):
    assert joining(market, tmp_path / "a", "--token", "join-token", "--name", "box-1") == 0
    assert {report.name for report in market.join_steps} == {"box-1"}
    done = [(report.step, report.detail) for report in market.join_steps if report.share == 1.0]
    assert done[0] == ("driver", "cpu")
    assert [step for step, _ in done] == ["driver", "disk", "base", "self_test"]
    assert done[2] == ("base", "here already")

    market.join_steps.clear()
    monkeypatch.setattr(base_files, "FREE_BESIDE_GB", 1e9)
    assert joining(market, tmp_path / "b", "--token", "join-token") == join.EXIT_REFUSED
    last = market.join_steps[-1]
    assert (last.step, last.failed) == ("disk", True)
    assert "Make room" in last.detail
    assert [request.name for request in market.joins] == ["box-1"]


def test_a_join_never_replaces_the_credentials_of_another_node(market, tmp_path, measured, capsys):
    file = ("--measured", str(tmp_path / "measured.json"))
    first = ("--token", "join-token", "--name", "box-1", *file)
    assert joining(market, tmp_path / "s", *first) == 0
    kept = (tmp_path / "s" / "node.json").read_bytes()
    # Another node in its directory; then the same one, while it runs.
    other = ("--token", "join-token", "--name", "box-2", *file)
    assert joining(market, tmp_path / "s", *other) == join.EXIT_REFUSED
    assert "holds the credentials of the node box-1" in capsys.readouterr().err
    with lock_state_dir(StateDir(tmp_path / "s")):
        assert joining(market, tmp_path / "s", *first) == join.EXIT_REFUSED
    assert "Another process runs this node" in capsys.readouterr().err
    assert (tmp_path / "s" / "node.json").read_bytes() == kept
    # The same one again shows what it holds; a machine whose host's name is taken takes the next.
    assert joining(market, tmp_path / "s", "--token", "join-token", *file) == 0
    assert [row.held_token for row in market.joins] == ["", market.join_reply.api_token]
    market.names_taken = {join.build_default_name(), f"{join.build_default_name()}-2"}
    assert joining(market, tmp_path / "c", "--token", "join-token", *file) == 0
    assert market.joins[-1].name == f"{join.build_default_name()}-3"
    market.names_taken = {"box-9"}
    chosen = ("--token", "join-token", "--name", "box-9", *file)
    assert joining(market, tmp_path / "d", *chosen) == join.EXIT_REFUSED


def test_joining_again_takes_no_release_of_the_same_key_back(market, tmp_path, measured):
    token = ("--token", "join-token", "--measured", str(tmp_path / "measured.json"))
    state = StateDir(tmp_path / "s")
    for key, serial, kept in (("a", 7, 7), ("a", 5, 7), ("b", 6, 6)):
        market.join_reply = replace(market.join_reply, market_key=key, release_serial=serial)
        assert joining(market, state.path, *token) == 0
        held = load_credentials(state)
        assert (held.market_key, held.release_serial) == (key, kept)


def test_a_second_node_of_a_machine_joins_by_what_the_first_measured(market, tmp_path, measured):
    file = ("--measured", str(tmp_path / "measured.json"))
    assert joining(market, tmp_path / "a", "--token", "join-token", *file) == 0
    # A process of its own, to see what it imports: no torch, so it takes no seconds.
    script = (
        "import sys; from workers.node import join; status = join.main(sys.argv[1:]); "
        "sys.exit(status or int('torch' in sys.modules))"
    )
    second = ("--url", market.url, "--state-dir", str(tmp_path / "b"), "--token", "join-token")
    subprocess.run([sys.executable, "-c", script, *second, *file], check=True)
    first, other = (request.facts for request in market.joins)
    assert other == first
    assert load_credentials(StateDir(tmp_path / "b")).device == "cpu"


@pytest.mark.parametrize(
    "change",
    [{"hostname": "elsewhere"}, {"torch_version": "0.1"}, {"device": "cuda"}, {"speeds": ()}],
)
def test_what_was_measured_elsewhere_does_not_count(tmp_path, change):
    path = tmp_path / "measured.json"
    join.save_facts(path, FACTS)
    assert join.load_known_facts(path, device="cpu", base_models=[TINY]) == FACTS
    join.save_facts(path, replace(FACTS, **change))
    assert join.load_known_facts(path, device="cpu", base_models=[TINY]) is None


def test_a_group_with_another_limit_is_measured_anew(tmp_path):
    path = tmp_path / "measured.json"
    parts = (BasePart(1, 0.01), BasePart(1, 0.01))
    facts = replace(FACTS, speeds=(replace(FACTS.speeds[0], parts=parts),))
    join.save_facts(path, facts)
    known = partial(join.load_known_facts, path, device="cpu,cpu", base_models=[TINY])
    assert known() == known(memory_gb=4.0) == facts
    assert known(memory_gb=3.5) is None
    assert join.load_known_facts(path, device="cpu", base_models=[TINY]) is None


def test_a_groups_full_cases_have_as_many_rows_as_those_of_one_device():
    full = self_test.list_full_cases(self_test.CASES, devices=8)
    assert full == [SpeedCase(2, share, 15) for share in (0.125, 0.5, 1.0)]
    assert self_test.list_full_cases(ONE_CASE, devices=4) == [SpeedCase(1, 0.05, 7)]


def test_the_token_may_come_from_the_environment(market, tmp_path, measured, monkeypatch):
    monkeypatch.setenv(join.TOKEN_VARIABLE, "join-token")
    assert joining(market, tmp_path, "--memory-gb", "3.5") == 0
    assert market.joins[0].facts.memory_gb == 3.5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--token", "wrong"], "The market says unknown_join_token."),
        ([], "Pass the join token with --token"),
        (["--token", "join-token", "--memory-gb", "-1"], "--memory-gb must be above 0."),
    ],
)
def test_a_refused_join_leaves_no_trace(market, tmp_path, capsys, monkeypatch, arguments, says):
    monkeypatch.delenv(join.TOKEN_VARIABLE, raising=False)
    assert joining(market, tmp_path, *arguments) == join.EXIT_REFUSED
    assert says in capsys.readouterr().err
    assert market.joins == []
    assert not (tmp_path / "node.json").exists()


def test_a_state_directory_that_cannot_be_made_spares_the_token(market, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    code = joining(market, tmp_path / "file" / "x", "--token", "join-token")
    assert code == join.EXIT_REFUSED
    assert "choose another with --state-dir" in capsys.readouterr().err
    assert market.requests == []


def test_a_full_disk_spares_the_token(market, tmp_path, capsys, monkeypatch):
    def fail(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("workers.node.credentials.tempfile.TemporaryFile", fail)
    code = joining(market, tmp_path, "--token", "join-token")
    assert code == join.EXIT_REFUSED
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith(
            "cannot be made or written: No space left on device. "
            "Free space there, or choose another with --state-dir."
        )
    )
    assert market.requests == []


def test_a_model_that_cannot_be_trained_here_is_said_before_joining(market, tmp_path, capsys):
    missing = replace(TINY, source="bundled:missing")
    market.join_reply = replace(market.join_reply, base_models=(missing,))
    assert joining(market, tmp_path, "--token", "join-token") == join.EXIT_REFUSED
    assert "no bundled model" in capsys.readouterr().err
    assert market.joins == []


def test_a_market_that_is_away_is_said(market, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(join, "_PATIENCE", join.Patience(total_s=0.0))
    url = market.url
    market.close()
    code = join.main(["--url", url, "--token", "t", "--state-dir", str(tmp_path)])
    assert code == join.EXIT_REFUSED
    assert re.search(r"no answer", capsys.readouterr().err)


def test_running_without_having_joined_says_how(tmp_path, capsys):
    assert run_main(["--state-dir", str(tmp_path)]) == EXIT_SETTINGS
    assert "python -m workers join" in capsys.readouterr().err


def test_every_case_becomes_a_row_of_the_table():
    said: list[str] = []
    facts = measure_node(
        device="cpu",
        base_models=[TINY],
        cases=(SpeedCase(1, 0.03, 1), SpeedCase(1, 0.03, 3)),
        work_cases=(TimedRows("equal", (0.03,) * 4, 2),),
        seconds_each=0.5,
        say=said.append,
    )
    assert [(row.batch_size, row.sequence_length, row.jobs) for row in facts.speeds] == [
        (1, 15, 1),
        (1, 15, 3),
    ]
    assert all(row.samples_per_s > 0 and row.job_memory_gb > 0 for row in facts.speeds)
    (work,) = facts.work
    assert (work.base_model, work.steps, work.sequences, work.tokens) == ("tiny", 2, 4, 60)
    assert said[0] == "loading tiny"
    assert len(said) == 4


@pytest.mark.parametrize(
    ("name", "gib", "short"),
    [
        ("NVIDIA A100-SXM4-80GB", 79.25, "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", 39.4, "A100-40GB"),
        ("NVIDIA A40", 44.4, "A40-48GB"),
        ("NVIDIA H100 80GB HBM3", 79.1, "H100-80GB"),
        ("NVIDIA H200", 139.8, "H200-141GB"),
        ("NVIDIA L40S", 44.5, "L40S-48GB"),
        ("Tesla T4", 14.6, "T4-16GB"),
        ("NVIDIA GeForce RTX 4090", 23.6, "RTX-4090-24GB"),
        ("NVIDIA RTX A6000", 47.5, "RTX-A6000-48GB"),
        ("Strange Device / 9", 7.9, "Strange-Device-9-8GB"),
        ("", 10.0, "gpu-11GB"),
    ],
)
def test_gpus_have_short_names(name, gib, short):
    assert normalize_gpu_name(name, int(gib * 1024**3)) == short
