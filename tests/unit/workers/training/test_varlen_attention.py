"""Variable-length attention is called as the installed release allows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.workers.training import slow_twins
from workers.training import attention

STARTS = (0, 3, 8)
PACK: Any = SimpleNamespace(starts_S=torch.tensor(STARTS), starts=torch.tensor(STARTS), longest=5)

CAUSAL: Any = {"causal": True, "scaling": 0.5, "window": None}


def attend_plainly(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    heads = [one.transpose(0, 1) for one in (query, key, value)]
    return slow_twins.attention(*heads, PACK, causal=True, scaling=0.5)


def without_sharing(query, key, value, _q, _k, _lq, _lk, *, scale=None, window_size=(-1, -1)):
    assert key.shape == query.shape, "this release wants equal heads"
    assert (scale, window_size) == (0.5, (-1, 0))
    return attend_plainly(query, key, value)


def with_sharing(
    query, key, value, _q, _k, _lq, _lk, *, scale=None, window_size=(-1, -1), enable_gqa=False
):
    assert enable_gqa == (key.shape != query.shape)
    assert (scale, window_size) == (0.5, (-1, 0))
    return attend_plainly(query, key, value)


def refusing(*_: Any, **__: Any) -> torch.Tensor:
    raise RuntimeError("head width 7 is not supported")


def values(width: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(1, 4, 8, width), torch.randn(1, 2, 8, width), torch.randn(1, 2, 8, width)


@pytest.mark.parametrize(
    ("kernel", "shares_keys"), [(without_sharing, False), (with_sharing, True)]
)
def test_either_signature_gives_the_same_values(monkeypatch, kernel, shares_keys):
    monkeypatch.setattr(attention, "_load_kernel", lambda: (kernel, shares_keys))
    query, key, value = values()
    found = attention._Flash().attend(query, key, value, PACK, **CAUSAL)
    assert found is not None
    expected = slow_twins.attention(query[0], key[0], value[0], PACK, causal=True, scaling=0.5)
    torch.testing.assert_close(found[0], expected)


def test_a_refusal_holds_for_tensors_of_that_kind_only(monkeypatch):
    monkeypatch.setattr(attention, "_load_kernel", lambda: (refusing, True))
    flash = attention._Flash()
    query, key, value = values(width=7)
    assert flash.attend(query, key, value, PACK, **CAUSAL) is None
    assert flash.refused == {(7, torch.float32, True)}
    monkeypatch.setattr(attention, "_load_kernel", lambda: (with_sharing, True))
    query, key, value = values(width=8)
    assert flash.attend(query, key, value, PACK, **CAUSAL) is not None
    assert flash.refused == {(7, torch.float32, True)}


@pytest.mark.parametrize(("window", "asked"), [(None, (-1, 0)), (4, (3, 0))])
def test_a_window_counts_the_token_itself(monkeypatch, window, asked):
    windows = []

    def noting(query, *_: Any, window_size: tuple[int, int], **__: Any) -> torch.Tensor:
        windows.append(window_size)
        return query

    monkeypatch.setattr(attention, "_load_kernel", lambda: (noting, True))
    attention._Flash().attend(*values(), PACK, **(CAUSAL | {"window": window}))
    assert windows == [asked]
