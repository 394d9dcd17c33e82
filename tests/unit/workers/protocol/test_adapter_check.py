"""A node's result is what the job demands, or it is refused before anything large is read."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from transformers import AutoModelForSequenceClassification, BertConfig, RobertaConfig

from tests.shape_builders import build_llama_shape
from tests.unit.workers.training_builders import tiny_model
from workers.protocol.adapter_check import (
    AdapterError,
    check_weights,
    list_adapter_tensors,
)
from workers.protocol.adapter_names import list_peft_names
from workers.protocol.job_spec import AdapterKind, AdapterSpec
from workers.protocol.model_shape import ModelShape
from workers.protocol.safetensors_header import HEADER_BYTES_MAX, HeaderError, read_header
from workers.training.adapter_export import to_peft_layout
from workers.training.packed_model import PackedModel

SHAPE = build_llama_shape(
    hidden_size=8,
    layers=2,
    intermediate_size=12,
    vocab_size=32,
    heads=2,
    kv_heads=1,
    head_size=4,
)
ADAPTER = AdapterSpec(rank=3, alpha=6.0)


def tensors(shape: ModelShape = SHAPE, adapter: AdapterSpec = ADAPTER) -> dict[str, np.ndarray]:
    sizes = list_adapter_tensors(shape, adapter, labels=4)
    return {name: np.full(size, 0.5, dtype=np.float32) for name, size in sizes.items()}


def check_tensors(
    values: dict[str, np.ndarray], *, shape: ModelShape = SHAPE, adapter: AdapterSpec = ADAPTER
) -> str:
    return check(save(values), shape=shape, adapter=adapter)


def check(content: bytes, *, shape: ModelShape = SHAPE, adapter: AdapterSpec = ADAPTER) -> str:
    return check_weights(io.BytesIO(content), size=len(content), shape=shape, adapter=adapter)


def encoder(family: str) -> Any:
    kind = {"bert": BertConfig, "roberta": RobertaConfig}[family]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 50}
    layout = {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 34}
    return AutoModelForSequenceClassification.from_config(kind(**sizes, **layout))


@pytest.mark.parametrize(
    "family", ["llama", "mistral", "qwen2", "qwen3", "gpt2", "bert", "roberta"]
)
def test_the_tensors_demanded_are_those_that_the_engine_writes(family):
    model = PackedModel(encoder(family) if "bert" in family else tiny_model(family))
    adapter = AdapterSpec(rank=4)
    drawn = model.draw_initial_values(adapter, seed=1, labels=3)
    names = list_peft_names((name, values.ndim) for name, values in drawn.items())
    written = {names[n]: tuple(to_peft_layout(n, values).shape) for n, values in drawn.items()}
    assert list_adapter_tensors(model.shape, adapter, labels=3) == written


def test_a_soft_prompt_is_one_tensor():
    adapter = AdapterSpec(kind=AdapterKind.SOFT_PROMPT, virtual_tokens=5)
    assert list_adapter_tensors(SHAPE, adapter) == {"prompt_embeddings": (5, 8)}
    check_tensors({"prompt_embeddings": np.ones((5, 8), dtype=np.float32)}, adapter=adapter)


def test_the_digest_is_of_names_and_values_however_the_file_is_laid_out():
    own = tensors()
    turned = save(dict(reversed(own.items())), metadata={"made": "elsewhere"})
    digest = check(save(own))
    assert check(turned) == digest
    name = next(iter(own))
    own[name] = own[name] + np.float32(1e-6)
    assert check(save(own)) != digest


def test_the_head_of_an_encoder_tells_as_many_labels_apart_as_it_says():
    shape = replace(SHAPE, encoder=True, model_type="roberta", kv_heads=2)
    values = tensors(shape)
    check_tensors(values, shape=shape)
    values["base_model.model.classifier.out_proj.bias"] = np.ones(5, dtype=np.float32)
    with pytest.raises(AdapterError, match=r"out_proj\.weight is 4 x 8 and the job's is 5 x 8"):
        check_tensors(values, shape=shape)


FIRST = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({FIRST: None}, "it lacks base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"),
        ({FIRST: np.ones((4, 12), np.float32)}, "is 4 x 12 and the job's is 3 x 12"),
        ({FIRST: np.ones((3, 12), np.float64)}, "is of type F64, not F32"),
        ({"extra": np.ones(1, np.float32)}, "holds 'extra'"),
        ({FIRST: np.full((3, 12), np.nan, np.float32)}, "not finite"),
        ({FIRST: np.array([[np.inf, -np.inf] + 10 * [0.0]] * 3, np.float32)}, "not finite"),
    ],
)
def test_other_tensors_than_the_jobs_are_refused(changes, words):
    values = {**tensors(), **changes}
    with pytest.raises(AdapterError, match=words):
        check_tensors({name: value for name, value in values.items() if value is not None})


def test_an_adapter_that_was_never_trained_is_refused():
    values = tensors()
    for name in values:
        if name.endswith("lora_B.weight"):
            values[name] = np.zeros_like(values[name])
    with pytest.raises(AdapterError, match="not trained"):
        check_tensors(values)
    values[FIRST.replace("lora_A", "lora_B")][1, 2] = 1e-30
    check_tensors(values)


def test_fewer_modules_are_demanded_where_fewer_were_asked():
    adapter = replace(ADAPTER, target_modules=("q_proj",))
    check_tensors(tensors(adapter=adapter), adapter=adapter)
    with pytest.raises(AdapterError, match="which the job's adapter does not have"):
        check_tensors(tensors(), adapter=adapter)


class CountingFile(io.BytesIO):
    """A file that knows how much of it was read."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.bytes_read = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.bytes_read += len(found)
        return found


def header_of(content: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(start: int, end: int, **changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [(end - start) // 4], "data_offsets": [start, end]} | changes


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header_of({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)), "overlap or leave a gap"),
        (header_of({"a": entry(0, 8), "b": entry(12, 16)}, bytes(16)), "overlap or leave a gap"),
        (header_of({"a": entry(0, 8)}, bytes(12)), "as if cut off"),
        (header_of({"a": entry(0, 8, shape=[3])}, bytes(8)), "not those of its shape"),
        (header_of({"a": entry(0, 8, shape=[2**40, 2**40])}, bytes(8)), "not those of its shape"),
        (header_of({"a": entry(0, 8, dtype="F5")}, bytes(8)), "a type that is not supported"),
        (header_of({"a": entry(0, 8, shape=[True, 2])}, bytes(8)), "has no shape"),
        (header_of({"a": {"dtype": "F32", "shape": []}}), "has no place"),
        (header_of({"__metadata__": {}}), "holds no tensor"),
        (b"\xff" * 8, "does not fit"),
        ((2).to_bytes(8, "little") + b"[]", "not an object"),
        ((3).to_bytes(8, "little") + b"{,}", "not JSON"),
    ],
)
def test_a_header_that_lies_is_refused(content, words):
    with pytest.raises(HeaderError, match=words):
        read_header(io.BytesIO(content), size=len(content))


def test_a_long_header_is_refused_before_it_is_read():
    length = HEADER_BYTES_MAX + 1
    file = CountingFile(length.to_bytes(8, "little") + b" " * length)
    with pytest.raises(HeaderError, match="more than 2,097,152"):
        read_header(file, size=8 + length)
    assert file.bytes_read == 8


def test_the_tensors_of_a_real_file_are_found_in_their_places():
    values = {"b": np.ones((2, 3), np.float32), "a": np.ones(4, np.float32)}
    content = save(values)
    file = io.BytesIO(content)
    found = read_header(file, size=len(content))
    assert {(entry.name, entry.shape, entry.dtype) for entry in found} == {
        ("b", (2, 3), "F32"),
        ("a", (4,), "F32"),
    }
    assert np.frombuffer(file.read(), dtype=np.float32).tolist() == 10 * [1.0]
