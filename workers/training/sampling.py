"""The choice of an answer's next token, on the CPU, from the logits of the whole vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from workers.protocol.generation import Question
from workers.training.faults import UserFault


def choose_token(
    logits_V: torch.Tensor,
    question: Question,
    random: torch.Generator,
    *,
    written: Sequence[int] = (),
    forbidden_V: torch.Tensor | None = None,
) -> int:
    """The likeliest token, or one drawn by temperature from ``top_k`` and the nucleus of ``top_p``.

    Parameters
    ----------
    logits_V : Tensor
        ``float[V]``; it stays as it is.
    written
        Tokens of the answer so far, which penalties are for.
    forbidden_V : Tensor, optional
        ``bool[V]``: tokens that cannot come here, and not all of them.

    Raises
    ------
    UserFault
        A token of ``logit_bias`` is not one of the model's.

    References
    ----------
    Holtzman et al. 2020, The Curious Case of Neural Text Degeneration, section 3.1, for the
    nucleus. Penalties are those of OpenAI's API, of the answer's tokens and not the prompt's.
    """
    logits_V = _change(logits_V, question, written)
    if forbidden_V is not None:
        logits_V = logits_V.masked_fill(forbidden_V, -torch.inf)
    if question.temperature == 0.0:
        return int(logits_V.argmax())
    probability_V = (logits_V / question.temperature).softmax(-1)
    ordered_V, token_V = probability_V.sort(descending=True, stable=True)
    if question.top_k:
        ordered_V, token_V = ordered_V[: question.top_k], token_V[: question.top_k]
        ordered_V = ordered_V / ordered_V.sum()
    # The first one always stays.
    before_V = ordered_V.cumsum(-1) - ordered_V
    nucleus_V = torch.where(before_V < question.top_p, ordered_V, 0.0)
    return int(token_V[torch.multinomial(nucleus_V, 1, generator=random)])


def _change(logits_V: torch.Tensor, question: Question, written: Sequence[int]) -> torch.Tensor:
    """Logits less what was written, plus what is wanted."""
    per_time, once = question.frequency_penalty, question.presence_penalty
    changes = [(one.token, one.bias) for one in question.logit_bias]
    if per_time or once:
        counts = Counter(written)
        changes += [(token, -(count * per_time + once)) for token, count in counts.items()]
    if not changes:
        return logits_V
    tokens = torch.tensor([token for token, _ in changes])
    if int(tokens.max()) >= len(logits_V):
        raise UserFault(
            f"logit_bias names token {int(tokens.max())}, and the model has {len(logits_V)}."
        )
    return logits_V.index_add(0, tokens, torch.tensor([change for _, change in changes]))
