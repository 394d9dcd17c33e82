"""What a model writes on held-out prompts, without and with a job's adapter.

Greedy decoding, bounded, one token of every text at a time, so that neighbours train in between:
one pack holds each prompt twice, once under the job's adapter and once under a name that no
adapter has, which is the bare base. There is no cache of earlier tokens: a pack is a few hundred
tokens, and there are at most ``WRITTEN_TOKENS_MAX`` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from workers.protocol.reports import SAMPLE_CHARS, TextSample
from workers.protocol.work import WRITTEN_TOKENS_MAX
from workers.training.job import TrainingJob
from workers.training.packed_model import PackedModel
from workers.training.packing import Example, PackShare, TokenSequence, build_pack
from workers.training.sample_prompts import SamplePrompt


class SampleRun:
    """Samples under way; their job must not step before they are written.

    Parameters
    ----------
    token_budget : int
        Tokens of a pack: prompts that it cannot hold with their answers are left out.
    """

    def __init__(
        self, job: TrainingJob, *, model: PackedModel, tokenizer: Any, token_budget: int
    ) -> None:
        self._job_id = job.job_id
        self._virtual_tokens = job.virtual_tokens
        self._context_length = model.context_length
        self._tokenizer = tokenizer
        self._stop_tokens = find_stop_tokens(model, tokenizer)
        self._prompts = _fit(job.data.prompts, job.virtual_tokens, token_budget)
        #: What is written so far: per prompt without the adapter, then per prompt with it.
        self._written: list[list[int]] = [[] for _ in range(2 * len(self._prompts))]
        self._open = set(range(len(self._written)))

    @torch.no_grad()
    def write_token(self, model: PackedModel, *, pad_to: int) -> tuple[TextSample, ...] | None:
        """Write the next token of each text; the samples once all are at their end."""
        self._open = {index for index in self._open if self._has_room(index)}
        if not self._open:
            return self._build()
        order = sorted(self._open)
        shares = [
            share
            for share in (
                # A name that no adapter has.
                self._share(f"{self._job_id} base", [i for i in order if i < self._half], 0),
                self._share(
                    self._job_id, [i for i in order if i >= self._half], self._virtual_tokens
                ),
            )
            if share.examples
        ]
        pack = build_pack(shares, device=model.device, pad_to=pad_to)
        with model.streaming(pack):
            hidden_TD = model.hidden(pack)
            last_S = (pack.starts_S[1:] - 1)[: len(order)].long()
            logits_SV = model.compute_logits(hidden_TD.index_select(0, last_S))
        for index, token in zip(order, logits_SV.float().argmax(-1).tolist(), strict=True):
            if token in self._stop_tokens:
                self._open.discard(index)
            else:
                self._written[index].append(token)
        return None if self._open else self._build()

    @property
    def _half(self) -> int:
        return len(self._prompts)

    def _has_room(self, index: int) -> bool:
        used = self._virtual_tokens + len(self._prompt(index).tokens) + len(self._written[index])
        return len(self._written[index]) < WRITTEN_TOKENS_MAX and used < self._context_length

    def _prompt(self, index: int) -> SamplePrompt:
        return self._prompts[index % self._half]

    def _share(self, job_id: str, indices: list[int], virtual_tokens: int) -> PackShare:
        examples = []
        for index in indices:
            tokens = np.concatenate(
                [self._prompt(index).tokens, np.asarray(self._written[index], dtype=np.int64)]
            )
            sequence = TokenSequence(tokens, np.zeros(len(tokens), dtype=np.float32))
            examples.append(Example(0, (sequence,)))
        return PackShare(job_id, tuple(examples), 0, 0, virtual_tokens=virtual_tokens)

    def _build(self) -> tuple[TextSample, ...]:
        return tuple(
            TextSample(
                prompt=_shorten(prompt.text or self._decode(prompt.tokens.tolist())),
                before=_shorten(self._decode(self._written[index])),
                after=_shorten(self._decode(self._written[index + self._half])),
            )
            for index, prompt in enumerate(self._prompts)
        )

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


def _fit(
    prompts: Sequence[SamplePrompt], virtual_tokens: int, token_budget: int
) -> tuple[SamplePrompt, ...]:
    """The first prompts whose longest answers fit into one pack, twice each."""
    kept: list[SamplePrompt] = []
    used = 0
    for prompt in prompts:
        used += 2 * (len(prompt.tokens) + WRITTEN_TOKENS_MAX) + virtual_tokens
        if used > token_budget:
            break
        kept.append(prompt)
    return tuple(kept)


def find_stop_tokens(model: PackedModel, tokenizer: Any) -> frozenset[int]:
    """Tokens that end an answer: the tokenizer's and those the model was made with."""
    # Encoders have no such settings.
    settings = getattr(model.model, "generation_config", None)
    named = getattr(settings, "eos_token_id", None)
    found = named if isinstance(named, list) else [named]
    return frozenset(token for token in (*found, tokenizer.eos_token_id) if token is not None)


def name_stop_tokens(model: PackedModel, tokenizer: Any) -> tuple[str, ...]:
    """The texts of ``find_stop_tokens``, as ``TokenizerEncoder`` takes them."""
    named = tokenizer.convert_ids_to_tokens(sorted(find_stop_tokens(model, tokenizer)))
    return tuple(text for text in named if text is not None)


def _shorten(text: str) -> str:
    """Text that every store takes, of at most ``SAMPLE_CHARS`` characters."""
    clean = text.replace("\0", "").encode("utf-8", "replace").decode("utf-8").strip()
    return clean if len(clean) <= SAMPLE_CHARS else clean[: SAMPLE_CHARS - 1] + "…"
