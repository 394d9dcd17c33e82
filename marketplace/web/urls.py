from django.urls import path

from marketplace.web.views import bids, jobs, market, money, workspace

urlpatterns = [
    path("", market.market, name="market"),
    path("market/<slug:zone_name>", market.market, name="market_zone"),
    path("market/<slug:zone_name>/transcript", market.download_transcript, name="transcript"),
    path("market/<slug:zone_name>/heads", market.download_heads, name="heads"),
    path("witnessed-heads", market.download_witnessed_heads, name="witnessed_heads"),
    path(".well-known/finetender-keys.json", market.show_public_keys, name="public_keys"),
    path("status", market.show_status, name="status"),
    path("bids/new", bids.bid_new, name="bid_new"),
    path("bids/<str:bid_id>", bids.bid_detail, name="bid_detail"),
    path("bids/<str:bid_id>/proof", bids.proof, name="bid_proof"),
    path("bids/<str:bid_id>/withdraw", bids.bid_withdraw, name="bid_withdraw"),
    path("jobs", jobs.job_list, name="job_list"),
    path("jobs/<str:job_id>", jobs.job_detail, name="job_detail"),
    path("jobs/<str:job_id>/cancel", jobs.job_stop, name="job_stop"),
    path("jobs/<str:job_id>/changes", jobs.changes_download, name="changes_download"),
    path("jobs/<str:job_id>/adapter", jobs.adapter_download, name="adapter_download"),
    path(
        "jobs/<str:job_id>/checkpoints/<str:checkpoint_id>",
        jobs.checkpoint_download,
        name="checkpoint_download",
    ),
    path("jobs/<str:job_id>/<str:tab>", jobs.job_detail, name="job_tab"),
    path("wallet", money.wallet_page, name="wallet"),
    path("wallet/ask", money.ask_for_money, name="wallet_ask"),
    path("datasets", workspace.dataset_list, name="dataset_list"),
    path("datasets/uploads/<str:upload_id>", workspace.upload_detail, name="upload_detail"),
    path(
        "datasets/uploads/<str:upload_id>/faults",
        workspace.list_upload_faults,
        name="upload_faults",
    ),
    path("datasets/<str:dataset_id>/delete", workspace.dataset_delete, name="dataset_delete"),
    path("datasets/<str:dataset_id>", workspace.dataset_detail, name="dataset_detail"),
    path("datasets/<str:dataset_id>/faults", workspace.list_dataset_faults, name="dataset_faults"),
    path("settings/api-keys", workspace.api_key_list, name="api_key_list"),
    path("settings/api-keys/<str:key_id>/revoke", workspace.api_key_end, name="api_key_end"),
    path("settings/organisation", workspace.organisation_choose, name="organisation_choose"),
]
