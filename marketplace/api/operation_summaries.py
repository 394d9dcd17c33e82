"""A sentence for each operation of the API whose view has no docstring for integrators."""

from __future__ import annotations

from typing import Any

from drf_spectacular.plumbing import get_lib_doc_excludes

from marketplace.api.answers import Answer, AsStored
from marketplace.api.market.bid_serializers import TermsAnswer
from marketplace.api.openai.views import OpenAiView
from marketplace.api.views import MarketView

SUMMARIES = {
    # /api
    "bids_list": "Your bids, the latest first.",
    "bids_create": "Place a sealed bid for a job. It is decided at once, or you ask again.",
    "bids_read": "One bid, its decision and what it pays.",
    "bids_proof": "What the owner of a decided bid needs to check it; it opens the bid.",
    "bids_answer": "Take the price that a bid was told, or leave it.",
    "bids_cancel_create": "Take back a bid that is not decided.",
    "bundles_create": "Bid for several jobs at once, all of them or each for itself.",
    "bundles_read": "One bundle and its bids.",
    "datasets_list": "Your data sets, the latest first.",
    "datasets_create": "Upload a data set.",
    "datasets_read": "One data set: its rows, tokens and what was found in it.",
    "datasets_delete": "Delete a data set. Its content goes once no job needs it.",
    "express_read": "One request of the express lane and what became of it.",
    "jobs_list": "Your jobs, the latest first.",
    "jobs_delete": "Delete what a job made and what was written of it; its accounts stay.",
    "jobs_adapter_delete": "Delete a job's adapter in every form, and its checkpoints.",
    "retention_read": "For how long data sets and results are kept that nobody uses.",
    "retention_set": "Say for how long data sets and results are kept that nobody uses.",
    "jobs_read": "One job: its progress, plan and result.",
    "jobs_checkpoints_list": "The checkpoints that are stored of a job.",
    "exports_read": "One export and how far it is.",
    "pushes_read": "One push to a repository and how far it is.",
    "keys_revoke": "End an API key for good.",
    "join_tokens_read": "One join token, and how far the machines are that join with it.",
    "join_tokens_revoke": "Revoke a join token: it lists no node any more.",
    "members_list": "Who belongs to your organisation, and as what.",
    "members_update": "Give a member another role. The last owner stays one.",
    "members_remove": "Take a member out of your organisation. The last owner stays.",
    "invitations_list": "Invitations that can still be accepted, the latest first.",
    "invitations_create": "Invite somebody by mail to your organisation.",
    "invitations_withdraw": "Take back an open invitation.",
    "webhooks_read": "One webhook.",
    "webhooks_delete": "Delete a webhook. Nothing more is sent to it.",
    "wandb_read": "Whether measurements of your jobs can be sent to Weights & Biases.",
    "wandb_set": "Store your key of Weights & Biases.",
    "wandb_remove": "Delete your key of Weights & Biases. Nothing more is sent.",
    "mlflow_read": "Whether measurements of your jobs can be sent to a MLflow server of yours.",
    "mlflow_set": "Store the address of your MLflow server, and its key.",
    "mlflow_remove": "Delete your MLflow server and its key. Nothing more is sent.",
    # /v1
    "create_chat_completion": "Answer a conversation with a base model or an adapter of yours.",
    "create_completion": "Go on from a text with a base model or an adapter of yours.",
    "create_response": "Answer a text or a conversation; nothing is stored.",
    "list_files": "Your training files, the latest first.",
    "create_file": "Upload a training file.",
    "retrieve_file": "One file and whether it can be trained on.",
    "delete_file": "Delete a file that no job needs.",
    "download_file": "The content of a file.",
    "list_fine_tuning_jobs": "Your jobs, the latest first.",
    "create_fine_tuning_job": "Bid for a job; 402 with the price if the bid does not win.",
    "retrieve_fine_tuning_job": "One job.",
    "cancel_fine_tuning_job": "End a job; what is left of it goes back at 98 % of its value.",
    "list_models": "The base models on sale and your adapters.",
    "retrieve_model": "One base model or adapter.",
    "create_upload": "Announce a file that is sent in parts.",
    "add_upload_part": "Send a part of a file.",
    "cancel_upload": "Delete the parts of a file that will not be completed.",
}


def add_summaries(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Give each operation without a description its summary: a hook of drf-spectacular."""
    for methods in result["paths"].values():
        for operation in methods.values():
            summary = SUMMARIES.get(operation.get("operationId", ""))
            if summary and not operation.get("description"):
                operation["summary"] = summary
    return result


def list_silent_views() -> list[type]:
    """Classes whose docstrings describe no operation and no answer."""
    return [*get_lib_doc_excludes(), MarketView, OpenAiView, Answer, AsStored, TermsAnswer]
