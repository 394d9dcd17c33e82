"""Every fast form against its slow twin, values and gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from tests.unit.workers.training import slow_twins
from tests.unit.workers.training_builders import (
    admit,
    random_examples,
    run_steps,
    tiny_model,
    training_job,
)
from workers.protocol.job_spec import AdapterSpec
from workers.training import adapter_products, attention, dropout, loss
from workers.training.fused_trainer import FusedTrainer
from workers.training.multi_lora import MultiLoRALinear, Stream
from workers.training.packed_model import PackedModel
from workers.training.packing import Pack, PackShare, build_pack

CPU = torch.device("cpu")
#: Rank per job; job ``c`` has no adapter on the layer.
RANKS = {"a": 3, "b": 8, "d": 1}


def mixed_pack(*, drops: bool, pad_to: int = 1) -> Pack:
    rates = (0.2, 0.0, 0.1, 0.5) if drops else (0.0, 0.0, 0.0, 0.0)
    shares = [
        PackShare(name, random_examples(3, seed=index), 0, step=2, seed=index, dropout=rate)
        for index, (name, rate) in enumerate(zip("abcd", rates, strict=True))
    ]
    return build_pack(shares, device=CPU, pad_to=pad_to)


def filled_layer(base: nn.Module) -> MultiLoRALinear:
    generator = torch.Generator().manual_seed(3)
    layer = MultiLoRALinear(base.requires_grad_(False), name="layer", stream=Stream())
    for name, rank in RANKS.items():
        put(
            layer,
            name,
            torch.randn(rank, layer.in_features, generator=generator),
            torch.randn(rank, layer.out_features, generator=generator),
        )
    return layer


def put(layer: MultiLoRALinear, name: str, A_RD: torch.Tensor, B_RO: torch.Tensor) -> None:
    """Attach an adapter of scale 2 over its rank."""
    layer.trained.attach(
        name,
        rank=len(A_RD),
        scale=2.0 / len(A_RD),
        A_RD=A_RD,
        B_RO=B_RO,
        magnitude_O=None,
        device=CPU,
        dtype=torch.float32,
    )


def run(layer: MultiLoRALinear, pack: Pack, forward) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    x_TD = torch.randn(pack.tokens, layer.in_features, generator=generator, requires_grad=True)
    weight_TO = torch.randn(pack.tokens, layer.out_features, generator=generator)
    for stacked in (layer.trained.A_RD, layer.trained.B_RO):
        assert stacked is not None
        assert stacked.grad is not None
        stacked.grad.zero_()
    out_TO = forward(x_TD)
    (out_TO * weight_TO).sum().backward()
    assert x_TD.grad is not None
    grads = [grad.clone() for name in RANKS for _, _, grad in layer.trained.tensors(name)]
    return [out_TO.detach(), x_TD.grad, *grads]


@pytest.mark.parametrize("form", ["segments", "dense", "grouped"])
@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("pad_to", [1, 64])
@pytest.mark.parametrize("base", [nn.Linear(24, 40), nn.Linear(24, 40, bias=False), Conv1D(40, 24)])
def test_a_form_equals_the_slow_loop_in_values_and_gradients(form, drops, pad_to, base):
    layer = filled_layer(base)
    pack = mixed_pack(drops=drops, pad_to=pad_to)
    slow = run(layer, pack, lambda x: slow_twins.multi_lora_linear(layer, x, pack))
    layer.stream.pack, layer.stream.form = pack, form
    fast = run(layer, pack, lambda x: layer(x[None])[0])
    for left, right in zip(fast, slow, strict=True):
        torch.testing.assert_close(left, right, rtol=2e-5, atol=2e-5)


def test_a_layer_that_is_not_a_plain_matrix_goes_the_same_way():
    class Wrapped(nn.Linear):
        """Stands for a quantised layer: its weight cannot be used directly."""

    base = Wrapped(24, 40)
    layer, pack = filled_layer(base), mixed_pack(drops=True)
    assert not layer.plain
    slow = run(layer, pack, lambda x: slow_twins.multi_lora_linear(layer, x, pack))
    layer.stream.pack = pack
    fast = run(layer, pack, lambda x: layer(x[None])[0])
    for left, right in zip(fast, slow, strict=True):
        torch.testing.assert_close(left, right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("ranks", [(8, 8, 8), (4, 4, 4), (8, 16, 16)])
def test_neighbours_of_one_rank_are_one_product_with_the_same_gradients(ranks, drops, monkeypatch):
    calls: list[int] = []
    real = adapter_products._multiply_group

    def count(x, A, B, run, ends):
        calls.append(len(run.scales))
        return real(x, A, B, run, ends)

    monkeypatch.setattr(adapter_products, "_multiply_group", count)
    monkeypatch.setitem(RANKS, "a", ranks[0])
    monkeypatch.setitem(RANKS, "b", ranks[1])
    monkeypatch.setitem(RANKS, "d", ranks[2])
    layer = filled_layer(nn.Linear(24, 40))
    pack = mixed_pack(drops=drops)
    slow = run(layer, pack, lambda x: slow_twins.multi_lora_linear(layer, x, pack))
    layer.stream.pack, layer.stream.form = pack, "grouped"
    fast = run(layer, pack, lambda x: layer(x[None])[0])
    for left, right in zip(fast, slow, strict=True):
        torch.testing.assert_close(left, right, rtol=2e-5, atol=2e-5)
    # ``c`` has no adapter here, and its tokens stand before those of ``d``.
    assert calls == ([2] if ranks == (8, 8, 8) else [])


@pytest.mark.parametrize("form", ["segments", "dense", "grouped"])
def test_a_diverged_neighbour_does_not_reach_other_rows(form):
    layer, pack = filled_layer(nn.Linear(24, 40)), mixed_pack(drops=False)
    layer.stream.pack, layer.stream.form = pack, form
    x = torch.randn(pack.tokens, 24, generator=torch.Generator().manual_seed(5))
    clean = layer(x[None])[0].detach()
    [(_, A_RD, _), _] = layer.trained.tensors("b")
    A_RD.fill_(float("nan"))
    dirty = layer(x[None])[0].detach()
    own = pack.segments[1]
    assert torch.isnan(dirty[own.start : own.end]).all()
    others = torch.ones(pack.tokens, dtype=torch.bool)
    others[own.start : own.end] = False
    assert torch.equal(dirty[others], clean[others])


def test_a_layer_has_just_its_adapters_rows_whoever_comes_and_goes():
    layer = filled_layer(nn.Linear(24, 40))
    stack = layer.trained
    assert stack.A_RD is not None
    assert stack.A_RD.grad is not None
    stack.A_RD.grad.normal_(generator=torch.Generator().manual_seed(6))
    kept = {n: [t.clone() for _, *pair in stack.tensors(n) for t in pair] for n in ("a", "d")}
    stack.detach("b")
    assert stack.A_RD.shape == (4, 24)
    put(layer, "e", torch.ones(2, 24), torch.ones(2, 40))
    put(layer, "f", torch.ones(20, 24), torch.ones(20, 40))
    assert [(name, slot.start) for name, slot in stack.slots.items()] == [
        *(("a", 0), ("d", 3), ("e", 4), ("f", 6))
    ]
    assert (stack.A_RD.shape, stack.B_RO.shape) == ((26, 24), (26, 40))
    for name, before in kept.items():
        after = [t for _, *pair in stack.tensors(name) for t in pair]
        assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    for name in list(stack.slots):
        stack.detach(name)
    assert stack.A_RD is None
    assert stack.B_RO is None


@pytest.mark.parametrize("first", range(4))
def test_an_adapter_leaves_also_where_there_is_no_memory_for_a_copy(first, monkeypatch):
    layer = filled_layer(nn.Linear(24, 40))
    for name, rank in (("e", 5), ("f", 2)):
        put(layer, name, torch.full((rank, 24), float(rank)), torch.full((rank, 40), float(rank)))
    names = list(layer.trained.slots)
    kept = {n: [t.clone() for _, t, _ in layer.trained.tensors(n)] for n in names}

    def refuse(*_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch.Tensor, "clone", refuse)
    layer.trained.detach(names[first])
    monkeypatch.undo()
    for name in (n for n in names if n != names[first]):
        for (_, value, grad), before in zip(layer.trained.tensors(name), kept[name], strict=True):
            assert torch.equal(value, before)
            assert not grad.any()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_packed_attention_equals_sequence_by_sequence(causal, key_heads):
    pack = mixed_pack(drops=False)
    generator = torch.Generator().manual_seed(7)
    heads = [
        torch.randn(1, n, pack.tokens, 8, generator=generator) for n in (4, key_heads, key_heads)
    ]
    module = nn.Module()
    module.is_causal = causal  # pyright: ignore[reportAttributeAccessIssue]
    results = []
    for fast in (True, False):
        inputs = [h.clone().requires_grad_() for h in heads]
        if fast:
            out = attention.attend_packed(module, *inputs, None, pack=pack, scaling=0.3)[0][0]
        else:
            rows = [h[0] for h in inputs]
            out = slow_twins.attention(rows[0], rows[1], rows[2], pack, causal=causal, scaling=0.3)
        (out * torch.arange(out.numel()).reshape(out.shape).cos()).sum().backward()
        results.append([out.detach(), *(h.grad for h in inputs)])
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [5, 64])
@pytest.mark.parametrize("bias", [True, False])
def test_chunked_loss_equals_cross_entropy_and_its_gradient(chunk, bias):
    generator = torch.Generator().manual_seed(8)
    head = torch.randn(50, 12, generator=generator)
    bias_V = torch.randn(50, generator=generator) if bias else None
    targets = torch.randint(50, (23,), generator=generator)
    weights = torch.rand(23, generator=generator)
    grads = []
    for function in (
        lambda h: loss.compute_token_nll(h, head, bias_V, targets, chunk_tokens=chunk),
        lambda h: slow_twins.compute_token_nll(h, head, bias_V, targets),
    ):
        hidden = torch.randn(23, 12, generator=torch.Generator().manual_seed(9)).requires_grad_()
        nll = function(hidden)
        (nll * weights).sum().backward()
        grads.append((nll.detach(), hidden.grad))
    torch.testing.assert_close(grads[0], grads[1])


def test_dropout_bits_depend_on_nothing_but_what_they_belong_to():
    keys = torch.from_numpy(
        dropout.hash_tokens(dropout.hash_sequence(seed=1, step=2, row=3, part=0), 4000)
    )
    columns = dropout.hash_columns("layer", 64, CPU)
    threshold = torch.full((4000,), dropout.compute_drop_threshold(0.3), dtype=torch.int32)
    keep = dropout.draw_keep_mask(keys, columns, threshold)
    assert torch.equal(
        keep[100:200], dropout.draw_keep_mask(keys[100:200], columns, threshold[100:200])
    )
    assert abs(keep.float().mean().item() - 0.7) < 0.005
    bits = keep.float() - 0.7
    # neighbours in either direction, and another layer's mask, are uncorrelated
    other = (
        dropout.draw_keep_mask(keys, dropout.hash_columns("other", 64, CPU), threshold).float()
        - 0.7
    )
    for product in (bits[1:] * bits[:-1], bits[:, 1:] * bits[:, :-1], bits * other):
        assert abs(product.mean().item()) < 0.002
    none = torch.zeros(4000, dtype=torch.int32)
    assert dropout.draw_keep_mask(keys, columns, none).all()


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2", "qwen3", "mistral"])
def test_packed_hidden_states_equal_the_stock_models(family):
    stock, packed = tiny_model(family), PackedModel(tiny_model(family))
    examples = random_examples(5, seed=11)
    pack = build_pack(
        [PackShare("a", examples[:2], 0, 0), PackShare("b", examples[2:], 0, 0)], device=CPU
    )
    with torch.no_grad(), packed.streaming(pack):
        hidden = packed.hidden(pack)
    for example, start, end in zip(examples, pack.starts[:-1], pack.starts[1:], strict=True):
        ids = torch.from_numpy(example.sequences[0].tokens)[None]
        with torch.no_grad():
            alone = stock.base_model(ids).last_hidden_state[0]
        torch.testing.assert_close(hidden[start:end], alone, rtol=1e-4, atol=1e-5)


def test_recomputing_blocks_gives_the_same_gradients_dropout_included():
    grads = []
    for recompute in (False, True):
        packed = PackedModel(tiny_model(), checkpoint_layers=recompute)
        adapter = AdapterSpec(rank=4, alpha=8.0, dropout=0.3)
        values = packed.draw_initial_values(adapter, seed=1)
        for name in values:
            if name.endswith("lora_B"):
                values[name].normal_(generator=torch.Generator().manual_seed(2))
        packed.attach("a", adapter, values)
        share = PackShare("a", random_examples(4, seed=1), 0, 3, seed=1, dropout=0.3)
        pack = build_pack([share], device=CPU)
        with packed.streaming(pack):
            packed.hidden(pack).square().sum().backward()
        grads.append([grad.clone() for _, _, grad in packed.tensors("a")])
    assert all(torch.equal(left, right) for left, right in zip(*grads, strict=True))
    assert all(grad.abs().sum() > 0 for grad in grads[0])


def test_padding_the_stream_changes_nothing_anyone_reads():
    packed = PackedModel(tiny_model())
    share = PackShare("a", random_examples(3, seed=4), 0, 0)
    plain = build_pack([share], device=CPU)
    padded = build_pack([share], device=CPU, pad_to=128)
    assert padded.tokens == 128
    assert np.array_equal(padded.predict_M.numpy(), plain.predict_M.numpy())
    with torch.no_grad(), packed.streaming(plain):
        left = packed.hidden(plain)
    with torch.no_grad(), packed.streaming(padded):
        right = packed.hidden(padded)
    torch.testing.assert_close(right[: plain.tokens], left, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["segments", "dense", "grouped"])
def test_bfloat16_compute_keeps_float32_masters_and_the_curve(form, monkeypatch):
    curves = []
    for dtype in (torch.float32, torch.bfloat16):
        fused = FusedTrainer(PackedModel(tiny_model().to(dtype)), token_budget=4096, pad_to=64)
        monkeypatch.setattr(fused.model, "choose_form", lambda: form)
        for index in range(3):
            rows = random_examples(24, seed=index)
            admit(fused, training_job(f"job-{index}", rows, adapter={"dropout": 0.1 * index}))
        curves.append(run_steps(fused, 12))
        for name in fused.jobs:
            for _, value, grad in fused.model.tensors(name):
                assert value.dtype == grad.dtype == torch.float32
    for name, curve in curves[0].items():
        np.testing.assert_allclose(curves[1][name], curve, rtol=2e-2)


def test_the_benchmark_needs_torch_transformers_and_peft_only():
    # what transformers and peft themselves bring is theirs
    code = """
import sys, torch, transformers, peft
from peft import get_peft_model
before = {name.partition(".")[0] for name in sys.modules}
import workers.bench.__main__
after = {name.partition(".")[0] for name in sys.modules}
print(sorted((after - before) & {"celery", "httpx", "django", "psutil", "redis", "workers"}))
print(sorted(name for name in sys.modules if name.startswith("workers.runtime")))
"""
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split("\n")[:2] == ["['workers']", "[]"]


def test_grouped_products_are_used_only_where_they_work(monkeypatch):
    device = torch.device("cpu")
    adapter_products.is_grouped_usable.cache_clear()
    assert adapter_products.is_grouped_usable(device)

    def refusing(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    def wrong(x_TD, A_RD, B_RO, table):
        return 2 * x_TD @ A_RD.to(x_TD.dtype).T @ B_RO.to(x_TD.dtype)

    for form in (refusing, wrong):
        adapter_products.is_grouped_usable.cache_clear()
        monkeypatch.setattr(adapter_products, "compute_grouped_delta", form)
        assert not adapter_products.is_grouped_usable(device)
    adapter_products.is_grouped_usable.cache_clear()


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("base", [nn.Linear(24, 16), Conv1D(16, 24)], ids=["linear", "conv"])
def test_answers_and_training_compute_a_layer_bit_for_bit_alike(base, drops):
    layer, pack = filled_layer(base), mixed_pack(drops=drops)
    x_TD = torch.randn(pack.tokens, layer.in_features, generator=torch.Generator().manual_seed(4))
    with layer.stream.reading(pack):
        trained_TO = layer(x_TD.requires_grad_())
        with torch.no_grad():
            answered_TO = layer(x_TD)
    assert trained_TO.grad_fn is not None
    assert answered_TO.grad_fn is None
    assert torch.equal(trained_TO, answered_TO)
