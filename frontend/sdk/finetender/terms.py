"""The terms of a job, as the market takes them.

Written by ``manage.py settings_write`` from the market's own definitions; not edited by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict


class AdapterSettings(TypedDict, total=False):
    """What is learnt; what is left out, the market chooses."""

    #: What is learnt: low-rank matrices beside the weights, or virtual tokens.
    kind: Literal["lora", "soft_prompt"]
    #: Rank of LoRA's matrices. auto: 16, or the largest that a node has memory for. Also
    #: taken as `r`.
    rank: int | Literal["auto"]
    #: LoRA's product is multiplied by alpha / rank. auto: twice the rank. Also taken as
    #: `lora_alpha`.
    alpha: float | Literal["auto"]
    #: Share of LoRA's inputs left out in training. auto: 0.05 below 1,000 rows. Also taken as
    #: `lora_dropout`.
    dropout: float | Literal["auto"]
    #: Projections that LoRA adapts, by name or the end of it; 'all-linear' and auto: all of
    #: attention and MLP.
    target_modules: Sequence[str] | Literal["all-linear"] | Literal["auto"]
    #: Soft prompt only: its tokens. auto: 20.
    virtual_tokens: int | Literal["auto"]
    #: Soft prompt only: the text that it begins as; empty: random tokens.
    init_text: str
    #: Multiply by alpha / sqrt(rank) (rsLoRA). auto: no, or as what it continues.
    rslora: bool | Literal["auto"]
    #: Learn the length of each output's weights apart (DoRA). auto: no, or as what it
    #: continues.
    dora: bool | Literal["auto"]
    #: Soft prompt of an express request only: begin with a known prompt if one loses less on
    #: the rows.
    looks_up: bool


class TrainingSettings(TypedDict, total=False):
    """How it is learnt; what is left out, the market chooses."""

    #: Times that each row is trained on. auto: 2 to 10, about 1,500 rows in all. Also taken
    #: as `num_epochs`.
    epochs: int | Literal["auto"]
    #: Rows of one optimizer step. auto: 4 to 32, by the number of rows.
    batch_size: int | Literal["auto"]
    #: The highest of the schedule. auto: by batch size and the model's width. Also taken as
    #: `lr`.
    learning_rate: float | Literal["auto"]
    #: How the learning rate falls after the warm-up.
    schedule: Literal["linear", "cosine", "constant"]
    #: Share of the steps in which the learning rate rises.
    warmup_share: float
    #: AdamW's decay of weights.
    weight_decay: float
    #: Longer gradients are cut to this length; 0: none is.
    max_grad_norm: float
    #: Tokens that a row may have; longer ones are cut. At most the zone's. auto: the longest
    #: row, in steps of 64. Also taken as `max_seq_length`.
    sequence_length: int | Literal["auto"]
    #: Of the order of rows, the first weights and dropout.
    seed: int
    #: Share of rows held out. auto: 0.1, or 0 where other rows are held out.
    validation_share: float | Literal["auto"]
    #: Steps between two evaluations; 0: about ten evaluations.
    eval_every_steps: int
    #: What preferences are learnt by.
    preference_loss: Literal["dpo", "orpo"]
    #: DPO's beta, or the weight of ORPO's odds.
    dpo_beta: float
    #: Noise on the embeddings of training rows (NEFTune); 0: none.
    neftune_alpha: float
    #: Evaluations without a lower validation loss after which the job ends with its best
    #: weights; 0: never.
    early_stopping: int
    #: Validation loss at which the job ends; 0: never.
    target_loss: float


class PreparationSettings(TypedDict, total=False):
    """What a vendor does with the data first, and who may see them for it."""

    #: Kinds of vendor that may see the data.
    kinds: Sequence[Literal["automatic", "human", "outside"]]
    #: What each column of the file holds, by the column's name.
    roles: Mapping[str, str]
    #: Leave out rows that stand there twice.
    drop_duplicates: bool
    #: Replace addresses, numbers and keys by marks; names stay.
    mask_personal_data: bool
    #: Regions, ISO 3166, whose phone numbers are found without a country's prefix; none are
    #: all.
    phone_regions: Sequence[str]
    #: Languages kept, ISO 639-1; none keeps all.
    languages: Sequence[
        Literal[
            "ar",
            "cs",
            "da",
            "de",
            "el",
            "en",
            "es",
            "fi",
            "fr",
            "he",
            "hi",
            "hu",
            "id",
            "it",
            "ja",
            "ko",
            "nl",
            "no",
            "pl",
            "pt",
            "ro",
            "ru",
            "sv",
            "th",
            "tr",
            "uk",
            "vi",
            "zh",
        ]
    ]
    #: Share of rows held out, none of which shares a prompt with the others.
    validation_share: float
    #: Skills that a vendor must have.
    skills: Sequence[
        Literal[
            "format_repair",
            "deduplication",
            "masking",
            "language_filter",
            "length_filter",
            "splitting",
            "labelling",
            "translation",
        ]
    ]
    #: What people or an outside vendor are to do, in your words.
    instructions: str
    #: Rows whose answer you know, each as JSON text, by their place in the file from 1, 5 or
    #: more. No vendor is told which they are. Fewer than 80 % right comes back once; then you
    #: may refuse it, and an operator decides.
    gold: Mapping[str, str]
    #: Seconds that you have to refuse a delivery; 0: the rule accepts it.
    review_s: int
    #: Id of the plan that you confirmed; its settings are taken over.
    plan: str


class JobTerms(TypedDict, total=False):
    """What a bid and a quote may say of a job."""

    #: What is learnt; what is left out, the market chooses.
    adapter: AdapterSettings
    #: How it is learnt; what is left out, the market chooses.
    training: TrainingSettings
    #: Only nodes of providers that the operator has verified. Without it, as your
    #: organisation has it. It leaves fewer plans to choose from; slots cost the same.
    verified_only: bool | None
    #: What to begin with: 'ft:' and the id of a job of yours whose adapter is to be
    #: continued, with ':ckpt-step-' and a step for that of a checkpoint; or that model's name
    #: in /v1/models; or, for one job, the model of a quote's warm start. 'resume:' and the id
    #: of a paused job of yours goes on with that job: its rest, with its own data and
    #: settings. Without it, the zone's base model.
    model: str
    #: Have a vendor prepare the data first: {} takes the defaults; null trains on the data as
    #: they are.
    preparation: PreparationSettings | None
    #: Up to 16 pairs of texts of your own, shown with the bid and its job.
    metadata: Mapping[str, str] | None
