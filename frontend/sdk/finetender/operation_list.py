"""Every operation of ``/api`` and ``/v1``, by its name there.

Written by ``manage.py settings_write``; not edited by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Route:
    """Where an operation is, and how it may be asked for."""

    method: str
    path: str
    #: It is done once under an idempotency key.
    takes_key: bool = False
    #: A list that comes in pages: its query has ``limit`` and ``after``.
    is_paged: bool = False
    #: It answers with a file or a stream, not with JSON.
    is_file: bool = False
    #: Member of the form that a file goes along as.
    file_member: str = "file"


OPERATIONS: Mapping[str, Route] = {
    "archive_read": Route("GET", "/api/archive", is_file=True),
    "bids_list": Route("GET", "/api/bids", is_paged=True),
    "bids_create": Route("POST", "/api/bids", takes_key=True),
    "bids_read": Route("GET", "/api/bids/{bid_id}"),
    "bids_answer": Route("POST", "/api/bids/{bid_id}/answer"),
    "bids_cancel_create": Route("POST", "/api/bids/{bid_id}/cancel"),
    "bids_proof": Route("GET", "/api/bids/{bid_id}/proof", is_file=True),
    "bids_batch_create": Route("POST", "/api/bids:batch", takes_key=True),
    "bundles_create": Route("POST", "/api/bundles", takes_key=True),
    "bundles_read": Route("GET", "/api/bundles/{bundle_id}"),
    "bundles_destroy": Route("DELETE", "/api/bundles/{bundle_id}"),
    "bundles_quotes_create": Route("POST", "/api/bundles/quotes"),
    "datasets_list": Route("GET", "/api/datasets", is_paged=True),
    "datasets_create": Route("POST", "/api/datasets", takes_key=True),
    "datasets_read": Route("GET", "/api/datasets/{dataset_id}"),
    "datasets_delete": Route("DELETE", "/api/datasets/{dataset_id}"),
    "dataset_consent_read": Route("GET", "/api/datasets/{dataset_id}/consent"),
    "dataset_consent_set": Route("PUT", "/api/datasets/{dataset_id}/consent"),
    "plans_create": Route("POST", "/api/datasets/{dataset_id}/plans"),
    "plans_read": Route("GET", "/api/datasets/{dataset_id}/plans/{plan_id}"),
    "plans_confirm": Route("POST", "/api/datasets/{dataset_id}/plans/{plan_id}/confirm"),
    "deletions_list": Route("GET", "/api/deletions", is_paged=True),
    "earnings_list": Route("GET", "/api/earnings", is_paged=True),
    "earnings_days": Route("GET", "/api/earnings/days", is_paged=True),
    "earnings_work": Route("GET", "/api/earnings/work", is_paged=True),
    "express_create": Route("POST", "/api/express", takes_key=True),
    "express_read": Route("GET", "/api/express/{request_id}"),
    "express_quotes_create": Route("POST", "/api/express/quotes"),
    "mlflow_read": Route("GET", "/api/integrations/mlflow"),
    "mlflow_set": Route("PUT", "/api/integrations/mlflow"),
    "mlflow_remove": Route("DELETE", "/api/integrations/mlflow"),
    "wandb_read": Route("GET", "/api/integrations/wandb"),
    "wandb_set": Route("PUT", "/api/integrations/wandb"),
    "wandb_remove": Route("DELETE", "/api/integrations/wandb"),
    "invitations_list": Route("GET", "/api/invitations", is_paged=True),
    "invitations_create": Route("POST", "/api/invitations"),
    "invitations_withdraw": Route("DELETE", "/api/invitations/{invitation_id}"),
    "jobs_list": Route("GET", "/api/jobs", is_paged=True),
    "jobs_read": Route("GET", "/api/jobs/{job_id}"),
    "jobs_delete": Route("DELETE", "/api/jobs/{job_id}"),
    "jobs_adapter_retrieve": Route("GET", "/api/jobs/{job_id}/adapter", is_file=True),
    "jobs_adapter_delete": Route("DELETE", "/api/jobs/{job_id}/adapter"),
    "adapter_consent_read": Route("GET", "/api/jobs/{job_id}/adapter/consent"),
    "adapter_consent_set": Route("PUT", "/api/jobs/{job_id}/adapter/consent"),
    "jobs_cancel_preview": Route("GET", "/api/jobs/{job_id}/cancel"),
    "jobs_cancel": Route("POST", "/api/jobs/{job_id}/cancel"),
    "jobs_checkpoints_list": Route("GET", "/api/jobs/{job_id}/checkpoints", is_paged=True),
    "jobs_checkpoint_content": Route(
        "GET", "/api/jobs/{job_id}/checkpoints/{checkpoint_id}/content", is_file=True
    ),
    "jobs_dispute_create": Route("POST", "/api/jobs/{job_id}/dispute"),
    "jobs_events_list": Route("GET", "/api/jobs/{job_id}/events", is_paged=True),
    "jobs_events_stream": Route("GET", "/api/jobs/{job_id}/events/stream", is_file=True),
    "exports_list": Route("GET", "/api/jobs/{job_id}/exports", is_paged=True),
    "exports_create": Route("POST", "/api/jobs/{job_id}/exports"),
    "exports_read": Route("GET", "/api/jobs/{job_id}/exports/{export_id}"),
    "exports_content": Route("GET", "/api/jobs/{job_id}/exports/{export_id}/content", is_file=True),
    "links_create": Route("POST", "/api/jobs/{job_id}/links"),
    "jobs_pause_preview": Route("GET", "/api/jobs/{job_id}/pause"),
    "jobs_pause": Route("POST", "/api/jobs/{job_id}/pause"),
    "jobs_preparation_retrieve": Route("GET", "/api/jobs/{job_id}/preparation"),
    "jobs_preparation_accept_create": Route("POST", "/api/jobs/{job_id}/preparation/accept"),
    "jobs_preparation_changes_retrieve": Route(
        "GET", "/api/jobs/{job_id}/preparation/changes", is_file=True
    ),
    "jobs_preparation_dispute_create": Route("POST", "/api/jobs/{job_id}/preparation/dispute"),
    "jobs_preparation_origins_retrieve": Route(
        "GET", "/api/jobs/{job_id}/preparation/origins", is_file=True
    ),
    "pushes_list": Route("GET", "/api/jobs/{job_id}/pushes", is_paged=True),
    "pushes_create": Route("POST", "/api/jobs/{job_id}/pushes"),
    "pushes_read": Route("GET", "/api/jobs/{job_id}/pushes/{push_id}"),
    "jobs_resume": Route("POST", "/api/jobs/{job_id}/resume", takes_key=True),
    "jobs_samples_retrieve": Route("GET", "/api/jobs/{job_id}/samples"),
    "join_tokens_list": Route("GET", "/api/join-tokens", is_paged=True),
    "join_tokens_create": Route("POST", "/api/join-tokens", takes_key=True),
    "join_tokens_read": Route("GET", "/api/join-tokens/{token_id}"),
    "join_tokens_revoke": Route("DELETE", "/api/join-tokens/{token_id}"),
    "keys_list": Route("GET", "/api/keys", is_paged=True),
    "keys_revoke": Route("DELETE", "/api/keys/{key_id}"),
    "keys_rotate": Route("POST", "/api/keys/{key_id}/rotate"),
    "market_retrieve": Route("GET", "/api/market/{zone_name}"),
    "market_transcript_retrieve": Route("GET", "/api/market/{zone_name}/transcript", is_file=True),
    "members_list": Route("GET", "/api/members", is_paged=True),
    "members_update": Route("PATCH", "/api/members/{member_id}"),
    "members_remove": Route("DELETE", "/api/members/{member_id}"),
    "nodes_list": Route("GET", "/api/nodes", is_paged=True),
    "nodes_read": Route("GET", "/api/nodes/{node_id}"),
    "nodes_ask_set": Route("PUT", "/api/nodes/{node_id}/ask"),
    "nodes_drain": Route("POST", "/api/nodes/{node_id}/drain", takes_key=True),
    "nodes_hours_change": Route("PATCH", "/api/nodes/{node_id}/hours"),
    "nodes_rates": Route("GET", "/api/nodes/{node_id}/rates"),
    "nodes_speed_reset": Route("POST", "/api/nodes/{node_id}/reset-speed", takes_key=True),
    "nodes_revoke": Route("POST", "/api/nodes/{node_id}/revoke", takes_key=True),
    "nodes_undrain": Route("POST", "/api/nodes/{node_id}/undrain", takes_key=True),
    "nodes_withdraw": Route("POST", "/api/nodes/{node_id}/withdraw", takes_key=True),
    "payouts_list": Route("GET", "/api/payouts", is_paged=True),
    "payouts_account": Route("GET", "/api/payouts/account"),
    "payouts_account_open": Route("POST", "/api/payouts/account"),
    "payouts_statement": Route("GET", "/api/payouts/statements/{month}"),
    "payouts_statement_csv": Route("GET", "/api/payouts/statements/{month}/csv", is_file=True),
    "quotes_create": Route("POST", "/api/quotes"),
    "retention_read": Route("GET", "/api/retention"),
    "retention_set": Route("PUT", "/api/retention"),
    "royalties_list": Route("GET", "/api/royalties", is_paged=True),
    "uploads_read": Route("GET", "/api/uploads/{upload_id}"),
    "wallet_read": Route("GET", "/api/wallet"),
    "wallet_entries": Route("GET", "/api/wallet/entries", is_paged=True),
    "warm_start_consent_read": Route("GET", "/api/warm-starts/consent"),
    "warm_start_consent_set": Route("PUT", "/api/warm-starts/consent"),
    "webhooks_list": Route("GET", "/api/webhooks", is_paged=True),
    "webhooks_create": Route("POST", "/api/webhooks"),
    "webhooks_read": Route("GET", "/api/webhooks/{webhook_id}"),
    "webhooks_delete": Route("DELETE", "/api/webhooks/{webhook_id}"),
    "webhooks_deliveries": Route("GET", "/api/webhooks/{webhook_id}/deliveries", is_paged=True),
    "webhooks_replay": Route("POST", "/api/webhooks/{webhook_id}/deliveries/{delivery_id}/replay"),
    "webhooks_enable": Route("POST", "/api/webhooks/{webhook_id}/enable"),
    "webhooks_rotate": Route("POST", "/api/webhooks/{webhook_id}/rotate"),
    "webhooks_test": Route("POST", "/api/webhooks/{webhook_id}/test"),
    "zones_list": Route("GET", "/api/zones"),
    "zones_base": Route("GET", "/api/zones/{zone_name}/base", is_file=True),
    "create_chat_completion": Route("POST", "/v1/chat/completions"),
    "create_completion": Route("POST", "/v1/completions"),
    "list_files": Route("GET", "/v1/files", is_paged=True),
    "create_file": Route("POST", "/v1/files", takes_key=True),
    "retrieve_file": Route("GET", "/v1/files/{file_id}"),
    "delete_file": Route("DELETE", "/v1/files/{file_id}"),
    "download_file": Route("GET", "/v1/files/{file_id}/content", is_file=True),
    "list_fine_tuning_jobs": Route("GET", "/v1/fine_tuning/jobs", is_paged=True),
    "create_fine_tuning_job": Route("POST", "/v1/fine_tuning/jobs", takes_key=True),
    "retrieve_fine_tuning_job": Route("GET", "/v1/fine_tuning/jobs/{job_id}"),
    "cancel_fine_tuning_job": Route("POST", "/v1/fine_tuning/jobs/{job_id}/cancel"),
    "list_fine_tuning_job_checkpoints": Route(
        "GET", "/v1/fine_tuning/jobs/{job_id}/checkpoints", is_paged=True
    ),
    "list_fine_tuning_events": Route("GET", "/v1/fine_tuning/jobs/{job_id}/events", is_paged=True),
    "pause_fine_tuning_job": Route("POST", "/v1/fine_tuning/jobs/{job_id}/pause"),
    "resume_fine_tuning_job": Route("POST", "/v1/fine_tuning/jobs/{job_id}/resume", takes_key=True),
    "list_models": Route("GET", "/v1/models"),
    "retrieve_model": Route("GET", "/v1/models/{model}"),
    "delete_model": Route("DELETE", "/v1/models/{model}"),
    "create_response": Route("POST", "/v1/responses"),
    "create_upload": Route("POST", "/v1/uploads", takes_key=True),
    "cancel_upload": Route("POST", "/v1/uploads/{upload_id}/cancel"),
    "complete_upload": Route("POST", "/v1/uploads/{upload_id}/complete"),
    "add_upload_part": Route("POST", "/v1/uploads/{upload_id}/parts", file_member="data"),
}
