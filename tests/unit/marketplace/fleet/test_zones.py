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
from marketplace.fleet.memory import compute_base_model_gb
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import build_base_model_ref
from marketplace.fleet.services import ZoneModel, ZoneSlots, ensure_zone
from marketplace.fleet.zones import ZoneTerms, open_zone
from tests.builders import NOW
from workers.protocol.base_files import hash_base_files
from workers.protocol.model_shape import parse_model_shape

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


def test_the_memory_of_known_models_is_known():
    llama = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "torch_dtype": "bfloat16",
    }
    # 8.03 billion weights.
    assert compute_base_model_gb(llama) == pytest.approx(8.03 * 2 * 1.05, rel=1e-3)
    assert compute_base_model_gb(llama, dtype="float32") == pytest.approx(8.03 * 4 * 1.05, rel=1e-3)
    # projections at 0.5625 bytes, embeddings at two, and the one matrix that is there in full
    assert compute_base_model_gb(llama, four_bit=True) == pytest.approx(6.822, rel=1e-3)


def test_all_experts_of_a_mixture_are_resident():
    mixtral = {"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32}
    mixtral |= {"intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    mixtral |= {"num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}
    assert compute_base_model_gb(mixtral, dtype="bfloat16") == pytest.approx(
        46.7 * 2 * 1.05, rel=1e-3
    )


def test_gpt2_has_other_names_for_its_sizes():
    sizes = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_inner": None}
    config = {"model_type": "gpt2", **sizes}
    shape = parse_model_shape(config)
    assert (shape.hidden_size, shape.layers, shape.heads) == (768, 12, 12)
    assert shape.intermediate_size == 3072
