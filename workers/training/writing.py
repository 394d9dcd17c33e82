"""Answers with adapters attached to a resident base, many at a time, one token of each a pack.

Keys and values of earlier tokens are cached. A greedy answer is token for token what stock
transformers and PEFT write.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from workers.protocol.generation import (
    BAD_SCHEMA,
    QUESTIONS_MAX,
    LikelyToken,
    Question,
    Written,
    WrittenToken,
)
from workers.protocol.prompts import encode_prompt
from workers.protocol.token_layout import TemplateError
from workers.training.answer_adapters import AnswerAdapters, Values
from workers.training.data import TokenizerEncoder
from workers.training.faults import PromptTooLong, SchemaFault, SystemFault, UserFault
from workers.training.grammars import AnswerGrammar
from workers.training.key_values import KeyValues
from workers.training.packed_model import PackedModel
from workers.training.packing import Example, PackShare, TokenSequence, build_pack
from workers.training.samples import find_stop_tokens
from workers.training.sampling import choose_token

#: A name that no adapter has: the bare base.
_BASE = "written by the base"
#: What a text ends with while a character has more tokens to come.
_UNFINISHED = "\ufffd"
#: Logarithm of the probability of a token that cannot come, as OpenAI gives it.
_IMPOSSIBLE = -9999.0

Tell = Callable[[Written], None]
#: Reads the tensors of a question's adapter.
Load = Callable[[], Values]


@dataclass(slots=True)
class _Answer:
    """An answer under way."""

    question: Question
    tell: Tell
    row: int
    #: Name under which its adapter is attached.
    adapter: str
    #: Of the prompt and of the adapter before it.
    prompt_tokens: int
    #: Most tokens of the answer.
    limit: int
    random: torch.Generator
    #: Of the prompt.
    tokens_read: np.ndarray
    #: What may come next; ``None``: anything.
    grammar: AnswerGrammar | None = None
    written: list[int] = field(default_factory=list)
    #: Characters of the text that were sent.
    sent: int = 0
    #: Tokens whose probabilities were not sent yet.
    tokens: list[WrittenToken] = field(default_factory=list)

    @property
    def virtual_tokens(self) -> int:
        """Those of a soft prompt."""
        adapter = self.question.adapter
        return 0 if adapter is None else adapter.spec.virtual_tokens

    @property
    def written_tail(self) -> np.ndarray:
        """The token that was written last."""
        return np.asarray(self.written[-1:], dtype=np.int64)

    @property
    def text(self) -> np.ndarray:
        """All that was read and written."""
        return np.concatenate([self.tokens_read, np.asarray(self.written, dtype=np.int64)])


class Writer:
    """The answers of one base under way. Not thread-safe: the training loop owns it.

    Parameters
    ----------
    make_room : callable
        Called when ``longest`` or the adapters may have grown; raises ``SystemFault`` where
        memory lacks.
    """

    def __init__(
        self,
        model: PackedModel,
        tokenizer: Any,
        adapters: AnswerAdapters,
        make_room: Callable[[], None],
    ) -> None:
        self._model = model
        self._adapters = adapters
        self._make_room = make_room
        #: Tokens of the longest text that may be written yet.
        self.longest = 0
        self._tokenizer = tokenizer
        self._encoder = TokenizerEncoder(tokenizer)
        self._stop_tokens = find_stop_tokens(model, tokenizer)
        self._cache = KeyValues(QUESTIONS_MAX)
        self._answers: dict[str, _Answer] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._answers)

    @torch.no_grad()
    def begin(
        self,
        question: Question,
        load: Load | None,
        tell: Tell,
        grammar: AnswerGrammar | None = None,
    ) -> None:
        """Read a question's prompt and write its first token.

        Parameters
        ----------
        grammar
            Of the question's schema, where it has one.

        Raises
        ------
        UserFault
            The prompt is empty, too long, or none for the model's chat template, or a token whose
            logit is to be changed is not one of the model's.
        SystemFault
            There is no memory for so long a text beside the jobs.
        """
        tokens = self._read_prompt(question)
        virtual = 0 if question.adapter is None else question.adapter.spec.virtual_tokens
        room = self._model.context_length - len(tokens) - virtual
        if room <= 0:
            raise PromptTooLong(
                f"The prompt has {len(tokens) + virtual} tokens, and the model reads "
                f"{self._model.context_length}. Shorten it."
            )
        limit = min(question.max_tokens, room)
        name = self._take(question, load, tokens=len(tokens) + virtual + limit)
        taken = {answer.row for answer in self._answers.values()}
        free = next((row for row in range(QUESTIONS_MAX) if row not in taken), None)
        assert free is not None, "the node took more questions than it has room for"
        answer = _Answer(
            question,
            tell,
            row=free,
            adapter=name,
            prompt_tokens=len(tokens),
            limit=limit,
            random=torch.Generator().manual_seed(question.seed),
            tokens_read=tokens,
            grammar=grammar,
        )
        self._answers[question.token] = answer
        try:
            self._cache.begin_prompt(free)
            share = _share(answer.adapter, [tokens], virtual_tokens=virtual)
            [logits_V] = self._compute_cached([share], tokens_each=len(tokens) + virtual)
            self._choose(answer, logits_V)
        except BaseException:
            self._remove(answer)
            raise

    @torch.no_grad()
    def write_token(self) -> None:
        """Write the next token of each answer."""
        in_order = sorted(self._answers.values(), key=lambda answer: (answer.adapter, answer.row))
        if not in_order:
            return
        groups = [
            (name, list(group))
            for name, group in itertools.groupby(in_order, key=lambda answer: answer.adapter)
        ]
        if self._model.is_packed:
            self._cache.begin_tokens([answer.row for answer in in_order])
            logits = self._compute_cached(
                [_share(name, [one.written_tail for one in group]) for name, group in groups],
                tokens_each=1,
            )
        else:
            # its own code keeps no keys for us
            logits = self._compute(
                [
                    _share(
                        name, [one.text for one in group], virtual_tokens=group[0].virtual_tokens
                    )
                    for name, group in groups
                ]
            )
        for answer, logits_V in zip(in_order, logits, strict=True):
            self._choose(answer, logits_V)

    def end(self, token: str) -> None:
        """Write no more of an answer, and report no more of it."""
        answer = self._answers.get(token)
        if answer is not None:
            self._remove(answer)

    def fail_all(self, reason: str) -> None:
        """End every answer, and say why."""
        for answer in list(self._answers.values()):
            self._finish(answer, "", "error", reason)

    def end_expired(self, now: float) -> None:
        """End answers that no one waits for any more."""
        for answer in list(self._answers.values()):
            if now >= answer.question.expires_at:
                self._remove(answer)

    def _take(self, question: Question, load: Load | None, *, tokens: int) -> str:
        """The name of the question's adapter; there is room for it and for a text so long."""
        name = _BASE
        if question.adapter is not None and load is not None:
            name = self._adapters.take(question.adapter, load)
        before, self.longest = self.longest, max(self.longest, tokens)
        try:
            try:
                self._make_room()
            except SystemFault:
                if not self._adapters.drop_unused():
                    raise
                self._make_room()
        except BaseException:
            self.longest = before
            self._release(name)
            self._adapters.drop_unused()
            raise
        return name

    def _release(self, name: str) -> None:
        if name != _BASE:
            self._adapters.release(name)

    def _read_prompt(self, question: Question) -> np.ndarray:
        try:
            tokens = encode_prompt(self._encoder, question)
        except TemplateError as error:
            raise UserFault(str(error)) from error
        if not tokens:
            raise UserFault("The prompt is empty. Give at least one character.")
        return np.asarray(tokens, dtype=np.int64)

    def _remove(self, answer: _Answer) -> None:
        del self._answers[answer.question.token]
        self._cache.lengths[answer.row] = 0
        self._release(answer.adapter)

    def _compute_cached(self, shares: Sequence[PackShare], *, tokens_each: int) -> torch.Tensor:
        """``_compute`` of a whole prompt, or of a token of each answer after its earlier ones."""
        if not self._model.is_packed:
            return self._compute(shares)
        places = None
        if tokens_each == 1:
            places = [self._cache.lengths[row] for row in self._cache.named]
        logits_SV = self._compute(shares, places=places, key_values=self._cache)
        self._cache.note(tokens_each)
        return logits_SV

    def _compute(
        self,
        shares: Sequence[PackShare],
        *,
        places: list[int] | None = None,
        key_values: KeyValues | None = None,
    ) -> torch.Tensor:
        """What may follow the last token of each sequence, ``float[S, V]``."""
        model = self._model
        pack = replace(build_pack(shares, device=model.device), key_values=key_values)
        if places is not None:
            pack = replace(pack, positions_T=torch.tensor(places, device=model.device))
        with model.streaming(pack, answers=True):
            hidden_TD = model.hidden(pack)
            last_S = (pack.starts_S[1:] - 1).long()
            logits_SV = model.compute_logits(hidden_TD.index_select(0, last_S))
        return logits_SV.float().cpu()

    def _choose(self, answer: _Answer, logits_V: torch.Tensor) -> None:
        """Choose the answer's next token, and report what is certain of it."""
        try:
            token = self._choose_token(answer, logits_V)
        except SchemaFault as fault:
            # The other answers go on.
            self._finish(answer, "", BAD_SCHEMA, str(fault))
            return
        if token in self._stop_tokens:
            self._finish(answer, self._decode(answer)[answer.sent :], "stop")
            return
        answer.written.append(token)
        if answer.question.top_tokens is not None:
            answer.tokens.append(self._describe(token, logits_V, answer.question.top_tokens))
        text = self._decode(answer)
        stop_at = _find_stop(text, answer.question.stop)
        if stop_at is not None:
            self._finish(answer, text[answer.sent : max(stop_at, answer.sent)], "stop")
        elif answer.grammar is not None and answer.grammar.is_whole:
            self._finish(answer, text[answer.sent :], "stop")
        elif len(answer.written) >= answer.limit:
            self._finish(answer, text[answer.sent :], "length")
        else:
            certain = _find_certain(text, answer.question.stop)
            if certain > answer.sent:
                self._tell(answer, text[answer.sent : certain])
                answer.sent = certain

    def _choose_token(self, answer: _Answer, logits_V: torch.Tensor) -> int:
        grammar = answer.grammar
        forbidden_V = None if grammar is None else grammar.find_forbidden()
        token = choose_token(
            logits_V,
            answer.question,
            answer.random,
            written=answer.written,
            forbidden_V=forbidden_V,
        )
        if grammar is not None and token not in self._stop_tokens:
            grammar.write(token)
        return token

    def _finish(self, answer: _Answer, text: str, finish: str, reason: str = "") -> None:
        self._remove(answer)
        self._tell(answer, text, finish, reason)

    def _tell(self, answer: _Answer, text: str, finish: str = "", reason: str = "") -> None:
        tokens, answer.tokens = tuple(answer.tokens), []
        answer.tell(
            Written(
                answer.question.token,
                text=text,
                tokens=tokens,
                prompt_tokens=answer.prompt_tokens,
                answer_tokens=len(answer.written),
                finish=finish,
                reason=reason,
            )
        )

    def _decode(self, answer: _Answer) -> str:
        return str(self._tokenizer.decode(answer.written, skip_special_tokens=True))

    def _describe(self, token: int, logits_V: torch.Tensor, top_tokens: int) -> WrittenToken:
        # JSON has no infinity.
        logprob_V = logits_V.log_softmax(-1).clamp(min=_IMPOSSIBLE)
        best = torch.topk(logprob_V, min(top_tokens, len(logprob_V)))
        return WrittenToken(
            self._show(token),
            float(logprob_V[token]),
            tuple(
                LikelyToken(self._show(index), value)
                for index, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ),
        )

    def _show(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))


def _share(name: str, sequences: list[np.ndarray], *, virtual_tokens: int = 0) -> PackShare:
    examples = tuple(
        Example(0, (TokenSequence(tokens, np.zeros(len(tokens), dtype=np.float32)),))
        for tokens in sequences
    )
    return PackShare(name, examples, 0, 0, virtual_tokens=virtual_tokens)


def _find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the first stop text begins."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return min(places, default=None)


def _find_certain(text: str, stops: Sequence[str]) -> int:
    """How much of a text no further token changes, and no stop text can begin in."""
    certain = len(text.rstrip(_UNFINISHED))
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:length]):
                certain = min(certain, len(text) - length)
                break
    return certain
