"""A base that runs through its own modelling code: the fallback for what packs cannot compute.

Attention with sinks, capped scores and the like have no packed form here. Such a base is trained
one job a pass: its rows go through the model as ``transformers`` has it, padded to rows of like
length, with its own eager attention and its own output layer. Jobs, adapters, checkpoints and files
are those of every other base.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from transformers import PreTrainedModel

from workers.training.multi_lora import Form
from workers.training.own_head import OwnHead
from workers.training.packed_model import PackedModel
from workers.training.packing import Bucket, JobSegment, Pack, build_bucket, group_by_length


class StockModel(PackedModel):
    """One resident base, computed by its own code.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A decoder.
    """

    attention = "eager"
    is_packed = False

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.shape = replace(self.shape, stock=True)
        self.own_head = OwnHead(model)

    def hidden(self, pack: Pack) -> torch.Tensor:
        """Last hidden states, ``[T, D]``; call inside ``streaming(pack)``.

        Padding is on the right, where nothing that is real sees it.
        """
        with_adapters = self.stream.pack is not None
        inputs_TD = self.embed_pack(pack)
        out_TD = inputs_TD.new_zeros(inputs_TD.shape)
        sizes = np.diff(pack.starts)
        for segment in pack.segments:
            own = np.flatnonzero(
                (pack.starts[:-1] >= segment.start) & (pack.starts[1:] <= segment.end)
            )
            for group in group_by_length(sizes[own]):
                bucket = build_bucket(own[group].tolist(), sizes, pack.starts, self.device)
                rows = _pad_rows(pack, segment, bucket) if with_adapters else None
                hidden = self._run(inputs_TD, pack, bucket, rows)
                assert bucket.stream is not None
                assert bucket.real is not None
                out_TD = out_TD.index_copy(0, bucket.stream, hidden.index_select(0, bucket.real))
        return out_TD

    def choose_form(self) -> Form:
        return "segments"

    def _run(
        self, inputs_TD: torch.Tensor, pack: Pack, bucket: Bucket, rows: Pack | None
    ) -> torch.Tensor:
        """``float[S * L, D]``: a bucket's rows through the blocks."""
        assert bucket.gather is not None
        shape = bucket.sequences, bucket.length
        inputs = self.describe_inputs(
            inputs_TD.index_select(0, bucket.gather).view(*shape, -1),
            pack.tokens_T.index_select(0, bucket.gather).view(shape),
        )
        with self.stream.reading(rows):
            found = self.backbone(**inputs, use_cache=False)
        return found.last_hidden_state.flatten(0, 1)


def _pad_rows(pack: Pack, segment: JobSegment, bucket: Bucket) -> Pack:
    """The pack as adapters see it while a bucket of one job runs: all rows are that job's."""
    places = bucket.gather
    assert places is not None
    whole = JobSegment(segment.job_id, 0, len(places), segment.dropout)
    keys, thresholds = pack.dropout_keys_T, pack.dropout_threshold_T
    if keys is None or thresholds is None:
        return replace(pack, segments=(whole,))
    return replace(
        pack,
        segments=(whole,),
        dropout_keys_T=keys.index_select(0, places),
        dropout_threshold_T=thresholds.index_select(0, places),
    )
