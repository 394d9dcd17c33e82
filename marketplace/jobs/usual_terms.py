"""What most jobs are sold with and end with; rows have what differs (``common.brief_json``).

The text of these is part of every row: a new usual value is a new column, with its migration. What
the database looks up is not here, such as epochs and the kind of an adapter.
"""

from __future__ import annotations

from typing import Any

#: Of ``workers.protocol.job_terms.PreparationWish``.
USUAL_WISH: dict[str, Any] = {
    "kinds": ["automatic"],
    "roles": {},
    "drop_duplicates": True,
    "mask_personal_data": False,
    "phone_regions": [],
    "languages": [],
    "validation_share": 0.0,
    "skills": [],
    "instructions": "",
    "gold": {},
    "review_s": 0,
    "plan": "",
}
#: Of ``workers.protocol.job_terms.JobTerms``.
USUAL_TERMS: dict[str, Any] = {
    "adapter": {
        "rank": 16,
        "alpha": 32.0,
        "dropout": 0.0,
        "target_modules": None,
        "virtual_tokens": 0,
        "init_text": "",
        "rslora": False,
        "dora": False,
    },
    "training": {
        "batch_size": 8,
        "learning_rate": 2e-4,
        "schedule": "cosine",
        "warmup_share": 0.03,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "sequence_length": 512,
        "seed": 0,
        "validation_share": 0.1,
        "eval_every_steps": 0,
        "preference_loss": "dpo",
        "dpo_beta": 0.1,
        "neftune_alpha": 0.0,
        "early_stopping": 0,
        "target_loss": 0.0,
    },
    "validation": None,
    "start": None,
    "preparation": [None, USUAL_WISH],
    "verified_only": False,
    "metadata": None,
    "resumes": None,
}
#: Of ``workers.protocol.reports.SliceResult``.
USUAL_RESULT: dict[str, Any] = {
    "first_train_loss": None,
    "last_train_loss": None,
    "valid_loss_before": None,
    "valid_loss_after": None,
    "trained_tokens": 0,
    "units_done": 0,
    "peak_memory_gb": None,
    "outliers": [],
    "samples": [],
    "stopped_early": False,
    "best_step": None,
    "lookup": None,
    "copied_tokens": None,
    "memorised_rows": 0,
    "attach_s": None,
    "first_step_at": None,
    "last_step_at": None,
    "fault": None,
    "reason": "",
}
