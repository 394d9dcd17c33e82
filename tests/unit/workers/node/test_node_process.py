"""A node's process, run in that of the tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.workers.node.market_double import MarketDouble
from tests.unit.workers.training_builders import save_tiny_base
from workers.node.credentials import Credentials, StateDir, save_credentials
from workers.node.process import EXIT_UNUSABLE
from workers.node.run import main


@pytest.fixture
def own_signals() -> Iterator[None]:
    """The process's signals are what they were again."""
    taken = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for one, handler in taken.items():
        signal.signal(one, handler)


@pytest.mark.usefixtures("own_signals")
def test_a_damaged_base_model_ends_the_node_with_a_sentence(
    tmp_path: Path, market: MarketDouble, capfd: pytest.CaptureFixture[str]
) -> None:
    ref = save_tiny_base(tmp_path / "base")
    weights = tmp_path / "base" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    state = StateDir(tmp_path / "state")
    save_credentials(
        state,
        Credentials(
            market_url=market.url,
            name="box",
            node_id="node_1",
            api_token=market.token,
            heartbeat_every_s=0.5,
            base_models=(ref,),
        ),
    )
    assert main(["--state-dir", str(state.path)]) == EXIT_UNUSABLE
    said = capfd.readouterr()
    assert "The base model 'tiny-llama' cannot be loaded" in said.err
    assert "Traceback" not in said.err + said.out
