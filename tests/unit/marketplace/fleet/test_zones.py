"""Opening a zone: read from the model's own files, refused before anything is made."""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

import workers.protocol
from marketplace.common.errors import Conflict, UserError
from marketplace.fleet import base_models
from marketplace.fleet.base_models import find_tokenizer_files
from marketplace.fleet.memory import compute_base_model_gb
from marketplace.fleet.models import Zone
from marketplace.fleet.policy_settings import find_beats_per_slot
from marketplace.fleet.selectors import build_base_model_ref
from marketplace.fleet.services import ZoneModel, ZoneSlots, ensure_zone
from marketplace.fleet.text_encoder import load_text_encoder
from marketplace.fleet.zones import ZoneTerms, open_zone
from tests.builders import NOW
from tests.market_builders import LLAMA_8B
from workers.protocol.base_files import hash_base_files

pytestmark = pytest.mark.django_db

BUNDLED = Path(workers.protocol.__file__).parents[1] / "models" / "finetender-tiny"
REVISION = "0123456789abcdef0123456789abcdef01234567"


def terms(**changes) -> ZoneTerms:
    return ZoneTerms(
        **{
            "name": "tiny",
            "base_model": "bundled:finetender-tiny",
            "slot_s": 600,
            "horizon_slots": 144,
            **changes,
        }
    )


def test_what_is_left_out_follows_from_the_model():
    zone = open_zone(terms=terms(), now=NOW)
    config = json.loads((BUNDLED / "config.json").read_text())
    assert zone.base_model_name == "finetender-tiny"
    assert zone.max_sequence_length == zone.reference_sequence_length == 512
    assert zone.model_shape["hidden_size"] == config["hidden_size"]
    # 3.68 million weights of 4 bytes, and the overhead.
    assert zone.base_memory_gb == pytest.approx(0.0155, rel=0.01)
    assert zone.epoch_at == NOW.replace(microsecond=0)
    assert zone.is_open


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"name": "Llama 8B"}, "name"),
        ({"name": ""}, "name"),
        ({"slot_s": 0}, "slot_s"),
        ({"slot_s": 90_000}, "slot_s"),
        ({"horizon_slots": 1}, "horizon_slots"),
        ({"jobs_per_node": 0}, "jobs_per_node"),
        ({"base_memory_gb": float("nan")}, "base_memory_gb"),
        ({"max_sequence_length": 513}, "max_sequence_length"),
        ({"base_model": "bundled:no-such"}, "base_model"),
        ({"base_model": "/no/such/directory"}, "base_model"),
        ({"base_model": "two/many/parts"}, "base_model"),
    ],
)
def test_a_wrong_term_is_named_and_makes_no_zone(changes, param):
    with pytest.raises(UserError) as refusal:
        open_zone(terms=terms(**changes), now=NOW)
    assert refusal.value.param == param
    assert Zone.objects.count() == 0


def test_a_zone_keeps_its_terms():
    open_zone(terms=terms(), now=NOW)
    with pytest.raises(Conflict, match="keeps its terms"):
        open_zone(terms=terms(slot_s=60), now=NOW)
    assert Zone.objects.get().slot_s == 600


def test_a_model_of_which_the_tokenizer_is_missing_is_refused_before_its_first_bid(tmp_path):
    (tmp_path / "config.json").write_text((BUNDLED / "config.json").read_text())
    with pytest.raises(UserError) as refusal:
        open_zone(terms=terms(base_model=str(tmp_path)), now=NOW)
    assert refusal.value.code == "unknown_tokenizer"
    assert Zone.objects.count() == 0


def test_a_model_that_no_token_stops_is_refused_before_its_first_bid(tmp_path):
    for name in ("config.json", "tokenizer.json", "generation_config.json", "shape.json"):
        shutil.copy(BUNDLED / name, tmp_path / name)
    stops = terms(base_model=str(tmp_path), shape=tmp_path / "shape.json")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": null}')
    with pytest.raises(UserError, match="has no token that ends a text") as refusal:
        open_zone(terms=stops, now=NOW)
    assert refusal.value.param == "base_model"
    assert Zone.objects.count() == 0
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 1]}')
    find_tokenizer_files.cache_clear()
    load_text_encoder.cache_clear()
    assert open_zone(terms=stops, now=NOW).is_open


def test_a_model_of_the_hub_is_read_from_its_local_copy(tmp_path, monkeypatch):
    copy = tmp_path / "models--example--tiny"
    snapshot = copy / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (copy / "refs").mkdir()
    (copy / "refs" / "main").write_text(REVISION)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(BUNDLED / name, snapshot / name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    zone = open_zone(terms=terms(base_model="example/tiny"), now=NOW)
    assert zone.base_model_name == zone.base_model_source == "example/tiny"
    with pytest.raises(UserError, match="cannot be read"):
        open_zone(terms=terms(name="other", base_model="example/unknown"), now=NOW)


def test_a_zone_of_another_releases_bundled_model_is_not_opened_again():
    zone = open_zone(terms=terms(), now=NOW)
    ref = build_base_model_ref(zone)
    assert ref.sha256 == hash_base_files(BUNDLED)
    opened: dict[str, Any] = {
        "name": zone.name,
        "base_model": ZoneModel(
            name=zone.base_model_name,
            source=zone.base_model_source,
            memory_gb=zone.base_memory_gb,
            max_sequence_length=zone.max_sequence_length,
        ),
        "slots": ZoneSlots(
            length_s=zone.slot_s, horizon=zone.horizon_slots, epoch_at=zone.epoch_at
        ),
        "now": NOW,
    }
    assert ensure_zone(**opened) == zone
    Zone.objects.update(base_model_sha256="0" * 64)
    with pytest.raises(Conflict, match="Start with a new data folder") as refused:
        ensure_zone(**opened)
    assert refused.value.code == "base_model_replaced"


def test_the_command_opens_a_zone_and_says_what_it_holds():
    out = StringIO()
    call_command("zone_create", "tiny", "--base-model", "bundled:finetender-tiny", stdout=out)
    assert "Zone tiny is open: finetender-tiny" in out.getvalue()
    assert "slots of 600 s, sold 24 h ahead" in out.getvalue()
    with pytest.raises(CommandError, match="keeps its terms"):
        call_command("zone_create", "tiny", "--base-model", "bundled:finetender-tiny")


@pytest.mark.parametrize(
    ("given", "slot_s", "beats"), [((), 600, 2), (("6",), 600, 6), (("6",), 10, 4), ((), 1, 1)]
)
def test_a_zone_is_opened_with_its_beats(given, slot_s, beats):
    flags = ("--beats-per-slot", *given) if given else ()
    command = ("zone_create", "tiny", "--base-model", "bundled:finetender-tiny", *flags)
    call_command(*command, "--slot-s", str(slot_s), stdout=StringIO())
    assert find_beats_per_slot(Zone.objects.get()) == beats


@pytest.mark.parametrize("beats", ["0", "13"])
def test_a_zone_of_beats_that_none_can_have_is_not_opened(beats):
    command = ("zone_create", "tiny", "--base-model", "bundled:finetender-tiny")
    with pytest.raises(CommandError, match="beats_per_slot"):
        call_command(*command, "--beats-per-slot", beats)
    assert not Zone.objects.exists()


def test_the_memory_of_known_models_is_known():
    llama = {"dtype": "bfloat16"}
    # 8.03 billion weights.
    assert compute_base_model_gb(LLAMA_8B, llama) == pytest.approx(8.03 * 2 * 1.05, rel=1e-3)
    assert compute_base_model_gb(LLAMA_8B, llama, dtype="float32") == pytest.approx(
        8.03 * 4 * 1.05, rel=1e-3
    )
    assert compute_base_model_gb(LLAMA_8B, {"text_config": llama}) == pytest.approx(
        8.03 * 2 * 1.05, rel=1e-3
    )
    # projections at 0.5625 bytes, embeddings at two, and the one matrix that is there in full
    assert compute_base_model_gb(LLAMA_8B, llama, four_bit=True) == pytest.approx(6.822, rel=1e-3)


def test_a_market_without_pytorch_asks_for_the_shape(tmp_path, monkeypatch):
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(BUNDLED / name, tmp_path / name)
    monkeypatch.setattr(base_models, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="name the file with --shape"):
        open_zone(terms=terms(base_model=str(tmp_path)), now=NOW)
    assert Zone.objects.count() == 0
    given = terms(base_model=str(tmp_path), shape=BUNDLED / "shape.json")
    assert open_zone(terms=given, now=NOW).model_shape["hidden_size"] == 224


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 0},
        {"vocab_size": "many"},
        {"layers": True},
        {"layers": 10**6},
        {"layers": 4},
        {"parts": []},
        {"parts": [{"name": "q_proj"}]},
        {"more": 1},
    ],
)
def test_a_shape_that_is_none_opens_no_zone(tmp_path, changes):
    stored = json.loads((BUNDLED / "shape.json").read_text()) | changes
    (tmp_path / "shape.json").write_text(json.dumps(stored))
    with pytest.raises(UserError, match="The shape of bundled:finetender-tiny cannot be read"):
        open_zone(terms=terms(shape=tmp_path / "shape.json"), now=NOW)
    assert Zone.objects.count() == 0


def test_a_model_that_cannot_be_trained_is_refused_with_what_is_missing(tmp_path):
    config = json.loads((BUNDLED / "config.json").read_text()) | {"model_type": "clip"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(BUNDLED / "tokenizer.json", tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match="type 'clip' cannot be trained here: this one does not"):
        open_zone(terms=terms(base_model=str(tmp_path)), now=NOW)
