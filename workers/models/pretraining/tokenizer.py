"""The bundled model's tokenizer: byte-level BPE, a chat template, six special tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from workers.models.pretraining.corpus import Document

END = "<|end|>"
PAD = "<|pad|>"
ROLES = ("system", "user", "assistant", "tool")
SPECIAL = (PAD, END, *(f"<|{role}|>" for role in ROLES))

#: One special token opens a message and one closes it; nothing stands between messages.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(
    texts: Iterable[str], *, vocabulary: int, context: int
) -> PreTrainedTokenizerFast:
    """Learn the merges; every byte is in the alphabet, so no text is unknown."""
    tokenizer = Tokenizer(models.BPE())
    # Digits stand alone: sums are learned digit by digit.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=list(SPECIAL[2:]),
        chat_template=CHAT_TEMPLATE,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )


def read_plain_words(document: Document) -> str:
    """A document's words without special tokens, to learn merges from."""
    if isinstance(document, str):
        return document
    return "\n".join(message["content"] for message in document)


def encode(tokenizer: Any, document: Document) -> list[int]:
    """A document's tokens, the closing one included."""
    if isinstance(document, str):
        return tokenizer.encode(document, add_special_tokens=False) + [tokenizer.eos_token_id]
    text = tokenizer.apply_chat_template(document, tokenize=False)
    return tokenizer.encode(text, add_special_tokens=False)
