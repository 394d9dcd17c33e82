"""What work costs on a base model whose speed was not measured: from its shape alone."""

from __future__ import annotations

from workers.protocol.job_spec import WorkCosts
from workers.protocol.model_shape import ModelShape
from workers.protocol.work import PARTS

#: An operation of attention takes longer than one of a large product, by this factor.
_ATTENTION = 1.5
#: One of the output layer, whose product is the largest, takes less.
_OUTPUT = 0.5
#: Tokens that take as long as a sequence and an optimizer step do beside theirs.
_SEQUENCE_TOKENS, _STEP_TOKENS = 16, 128
_FORWARD, _EVEN = 0.45, 0.9


def build_work_costs(shape: ModelShape) -> WorkCosts:
    """The costs of a model's work, relative to a token in its frozen layers.

    A frozen weight takes 4 operations a token, forward and back (its own gradient is not needed);
    so do the output layer's for a trained token, and causal attention takes ``7 L q`` a token and
    layer: two products over half of ``L`` keys forward, five back.

    Parameters
    ----------
    shape : ModelShape
        Of the base model.
    """
    weights = sum(part.inputs * part.outputs for part in shape.list_projections())
    output = 0 if shape.encoder else shape.vocab_size * shape.hidden_size
    pair = 7 * shape.layers * shape.query_size / 4
    if shape.encoder:
        # Every token sees every other, not only those before it.
        pair *= 2
    return WorkCosts(
        token=PARTS,
        trained_token=round(PARTS * _OUTPUT * output / weights),
        token_pair=round(PARTS * _ATTENTION * pair / weights),
        sequence=PARTS * _SEQUENCE_TOKENS,
        step=PARTS * _STEP_TOKENS,
        forward=round(PARTS * _FORWARD),
        even=round(PARTS * _EVEN),
    )
