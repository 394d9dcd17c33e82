"""An example of each request for the OpenAPI documents, by the class that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DATASET = "ds_01kbe3v6m2n4p8q0r5s7t9v1w3"
_FILE = "file-01kbe3v6m2n4p8q0r5s7t9v1w3"
_WORK = {"zone": "llama-8b", "dataset_id": _DATASET, "training": {"epochs": 3}}
_PROMPT = {**_WORK, "adapter": {"kind": "soft_prompt"}}
_BID = {**_WORK, "name": "support-answers", "deadline": "6h", "price": "4.50"}
_SWEEP = {**_WORK, "deadline": "6h", "sweep": {"adapter.rank": [8, 16]}}
_ROWS = '{"prompt": "Where is my order?", "completion": "It comes tomorrow."}\n'

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    # /api
    "AdapterConsentRequest": {"is_given": True},
    "PriceAnswerRequest": {"take": True, "price": "3.20"},
    "AskRequest": {"ask": "0.05"},
    "BatchRequest": {"bids": [_BID]},
    "BidRequest": _BID,
    "BundleQuoteRequest": _SWEEP,
    "BundleRequest": {**_SWEEP, "price": "8.00"},
    "CancelRequest": {"refund_at_least": "3.92"},
    "ConsentRequest": {"uses_donors": True, "gives_adapters": False},
    "DatasetConsentRequest": {"uses_donors": None, "gives_adapters": True},
    "DatasetUploadRequest": {"file": _ROWS, "name": "answers", "zone": "llama-8b"},
    "DisputeRequest": {"reason": "It answers in another language than the rows."},
    "ExportRequest": {"form": "merged"},
    "ExpressRequestBody": {**_PROMPT, "slo_s": 60},
    "HoursRequest": {"opens": "22:00", "closes": "06:00"},
    "InvitationRequest": {"email": "ada@example.org", "role": "member"},
    "JoinTokenRequest": {"zone": "llama-8b", "ask": "0.05", "nodes": 2},
    "KeyRotationRequest": {"overlap_s": 3600},
    "LinkRequest": {"file": "adapter", "expires_in_s": 600},
    "PlanRequest": {"roles": {"frage": "prompt", "antwort": "completion"}},
    "PushRequest": {"repository": "ada/support-answers", "token": "hf_..."},
    "QuoteRequest": {**_WORK, "deadline": "6h"},
    "ResumeRequest": {"price": "3.20", "deadline": "12h"},
    "RetentionRequest": {"retain_days": 90},
    "RoleRequest": {"role": "member"},
    "WandbKeyRequest": {"key": "0123456789abcdef0123456789abcdef01234567"},
    "MlflowKeyRequest": {"address": "https://mlflow.example.com", "key": "ana:secret"},
    "WebhookRequest": {"url": "https://example.org/hook", "events": ["job.succeeded"]},
    "WorkRequest": _PROMPT,
    # /v1
    "ChatRequest": {
        "model": "llama-8b",
        "messages": [{"role": "user", "content": "Where is my order?"}],
    },
    "CompletionRequest": {"model": "llama-8b", "prompt": "My order"},
    "FileRequest": {"file": _ROWS, "purpose": "fine-tune"},
    "FineTuningJobRequest": {
        "model": "llama-8b",
        "training_file": _FILE,
        "suffix": "support-answers",
        "bid": {"max_price": "4.50", "deadline": "6h"},
    },
    "FineTuningResumeRequest": {"bid": {"max_price": "3.20", "deadline": "12h"}},
    "PartRequest": {"data": _ROWS},
    "PartedUploadRequest": {
        "filename": "rows.jsonl",
        "purpose": "fine-tune",
        "bytes": 5_000_000_000,
        "mime_type": "application/jsonl",
    },
    "ResponseRequest": {"model": "llama-8b", "input": "Where is my order?"},
    "UploadCompletion": {"part_ids": ["part_01kbe3v6m2n4p8q0r5s7t9v1w3"]},
}
