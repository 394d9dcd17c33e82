"""Keys and values of sequences that are being written, so that a token is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from workers.protocol.pass_bytes import FIRST_CACHE_TOKENS


class KeyValues:
    """A row per sequence, in every layer. A pack names it, and attention reads and fills it.

    A pack holds either one whole prompt, or one token of each of several rows.

    Parameters
    ----------
    rows : int
        Sequences at a time.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        #: Keys and values of each attention module, ``float[S, H, L, D]``.
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        #: Tokens of each row.
        self.lengths = [0] * rows
        #: Rows of the pack under way, and whether it is a prompt.
        self._named: tuple[int, ...] = ()
        self._is_prompt = False
        #: By device, for all layers of a pack: its rows, their lengths, and what each sees.
        self._places: dict[torch.device, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def begin_prompt(self, row: int) -> None:
        """The next pack is the whole of this row."""
        self._named, self._is_prompt, self._places = (row,), True, {}
        self.lengths[row] = 0

    def begin_tokens(self, rows: Sequence[int]) -> None:
        """The next pack has one token of each of these rows, in this order."""
        self._named, self._is_prompt, self._places = tuple(rows), False, {}

    @property
    def named(self) -> tuple[int, ...]:
        """The rows of the pack under way."""
        return self._named

    def note(self, tokens: int) -> None:
        """The pack was computed, with so many tokens of each row."""
        for row in self._named:
            self.lengths[row] += tokens

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float | None,
        window: int | None = None,
    ) -> torch.Tensor:
        """Attention of the pack's tokens to earlier ones of their rows.

        Parameters
        ----------
        query, key, value : float[1, H, T, D]
            As in ``attend_packed``.
        window : int, optional
            How many tokens a token sees, itself included; all before it by default.

        Returns
        -------
        float[1, T, H, D]
        """
        tokens = query.shape[2]
        longest = max(self.lengths[row] for row in self._named) + (tokens if self._is_prompt else 1)
        keys, values = self._find_room(module, key, value, longest)
        if self._is_prompt:
            row = self._named[0]
            keys[row, :, :tokens], values[row, :, :tokens] = key[0], value[0]
            mask = None
            if window is not None and tokens > window:
                at_T = torch.arange(tokens, device=query.device)
                ago_TT = at_T[:, None] - at_T[None, :]
                mask = (ago_TT >= 0) & (ago_TT < window)
            attended = F.scaled_dot_product_attention(
                query,
                _repeat(key, query),
                _repeat(value, query),
                attn_mask=mask,
                is_causal=mask is None,
                scale=scaling,
            )
            return attended.transpose(1, 2)
        rows, places, seen = self._find_places(longest, query.device)
        if window is not None and longest > window:
            seen = seen & (torch.arange(longest, device=query.device) > places[:, None] - window)
        keys[rows, :, places], values[rows, :, places] = (
            key[0].transpose(0, 1),
            value[0].transpose(0, 1),
        )
        query_BH1D = query[0].transpose(0, 1).unsqueeze(2)
        attended = F.scaled_dot_product_attention(
            query_BH1D,
            _repeat(keys[rows, :, :longest], query_BH1D),
            _repeat(values[rows, :, :longest], query_BH1D),
            attn_mask=seen[:, None, None, :],
            scale=scaling,
        )
        return attended.squeeze(2).unsqueeze(0)

    def _find_places(
        self, longest: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows of the pack, where their tokens go, and ``bool[S, L]`` what each of them sees."""
        if device not in self._places:
            rows = torch.tensor(self._named, device=device)
            places = torch.tensor([self.lengths[row] for row in self._named], device=device)
            seen = torch.arange(longest, device=device)[None, :] <= places[:, None]
            self._places[device] = rows, places, seen
        return self._places[device]

    def _find_room(
        self, module: Any, key: torch.Tensor, value: torch.Tensor, tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's keys and values, with room for so many tokens in each row."""
        had = self._layers.get(id(module))
        # doubled when there are more tokens
        room = FIRST_CACHE_TOKENS if had is None else had[0].shape[2]
        while room < tokens:
            room *= 2
        if had is None or had[0].shape[2] < room:
            made = tuple(
                like.new_zeros(self._rows, like.shape[1], room, like.shape[3])
                for like in (key, value)
            )
            if had is not None:
                for new, old in zip(made, had, strict=True):
                    new[:, :, : old.shape[2]] = old
            self._layers[id(module)] = had = (made[0], made[1])
        return had


def _repeat(values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """``[B, H, L, D]`` with as many heads as the query has."""
    repeats = query.shape[1] // values.shape[1]
    return values if repeats == 1 else values.repeat_interleave(repeats, dim=1)
