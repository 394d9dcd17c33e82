"""Every address of the market's own API."""

from django.urls import path, re_path

from marketplace.api.market import (
    bids,
    bundles,
    datasets,
    express,
    job_stream,
    jobs,
    keys,
    money,
    vendor_work,
    webhooks,
    zones,
)
from marketplace.api.openapi import SchemaView
from marketplace.api.views import UnknownAddressView

urlpatterns = [
    path("schema", SchemaView.as_view(), name="api-schema"),
    path("zones", zones.ZonesView.as_view(), name="api-zones"),
    path("market/<str:zone_name>", zones.MarketNowView.as_view(), name="api-market"),
    path(
        "market/<str:zone_name>/transcript",
        zones.TranscriptView.as_view(),
        name="api-transcript",
    ),
    path("quotes", zones.QuotesView.as_view(), name="api-quotes"),
    path("bids", bids.BidsView.as_view(), name="api-bids"),
    path("bids:batch", bids.BidBatchView.as_view(), name="api-bids-batch"),
    path("bids/<str:bid_id>", bids.BidView.as_view(), name="api-bid"),
    path("bids/<str:bid_id>/cancel", bids.BidCancelView.as_view(), name="api-bid-cancel"),
    path("bundles", bundles.BundlesView.as_view(), name="api-bundles"),
    path("bundles/quotes", bundles.BundleQuotesView.as_view(), name="api-bundle-quotes"),
    path("bundles/<str:bundle_id>", bundles.BundleView.as_view(), name="api-bundle"),
    path("express", express.ExpressRequestsView.as_view(), name="api-express"),
    path("express/quotes", express.ExpressQuotesView.as_view(), name="api-express-quotes"),
    path(
        "express/<str:request_id>",
        express.ExpressRequestView.as_view(),
        name="api-express-request",
    ),
    path("datasets", datasets.DatasetsView.as_view(), name="api-datasets"),
    path("datasets/<str:dataset_id>", datasets.DatasetView.as_view(), name="api-dataset"),
    path("uploads/<str:upload_id>", datasets.UploadView.as_view(), name="api-upload"),
    path("jobs", jobs.JobsView.as_view(), name="api-jobs"),
    path("jobs/<str:job_id>", jobs.JobView.as_view(), name="api-job"),
    path("jobs/<str:job_id>/events", jobs.JobEventsView.as_view(), name="api-job-events"),
    path(
        "jobs/<str:job_id>/events/stream",
        job_stream.JobEventStreamView.as_view(),
        name="api-job-stream",
    ),
    path(
        "jobs/<str:job_id>/checkpoints/<str:checkpoint_id>/content",
        jobs.JobCheckpointContentView.as_view(),
        name="api-job-checkpoint",
    ),
    path(
        "jobs/<str:job_id>/preparation",
        jobs.JobPreparationView.as_view(),
        name="api-job-preparation",
    ),
    path(
        "jobs/<str:job_id>/preparation/changes",
        jobs.JobPreparationChangesView.as_view(),
        name="api-job-preparation-changes",
    ),
    path(
        "jobs/<str:job_id>/preparation/accept",
        jobs.JobPreparationAcceptView.as_view(),
        name="api-job-preparation-accept",
    ),
    path(
        "jobs/<str:job_id>/preparation/dispute",
        jobs.JobPreparationDisputeView.as_view(),
        name="api-job-preparation-dispute",
    ),
    path("jobs/<str:job_id>/samples", jobs.JobSamplesView.as_view(), name="api-job-samples"),
    path(
        "jobs/<str:job_id>/checkpoints",
        jobs.JobCheckpointsView.as_view(),
        name="api-job-checkpoints",
    ),
    path("jobs/<str:job_id>/adapter", jobs.JobAdapterView.as_view(), name="api-job-adapter"),
    path("jobs/<str:job_id>/cancel", jobs.JobCancelView.as_view(), name="api-job-cancel"),
    path("wallet", money.WalletView.as_view(), name="api-wallet"),
    path("wallet/entries", money.WalletEntriesView.as_view(), name="api-wallet-entries"),
    path("nodes", money.NodesView.as_view(), name="api-nodes"),
    path("earnings", money.EarningsView.as_view(), name="api-earnings"),
    path("keys", keys.KeysView.as_view(), name="api-keys"),
    path("keys/<str:key_id>", keys.KeyView.as_view(), name="api-key"),
    path("keys/<str:key_id>/rotate", keys.KeyRotationView.as_view(), name="api-key-rotate"),
    path("webhooks", webhooks.WebhooksView.as_view(), name="api-webhooks"),
    path("webhooks/<str:webhook_id>", webhooks.WebhookView.as_view(), name="api-webhook"),
    path("webhooks/<str:webhook_id>/rotate", webhooks.WebhookRotateView.as_view()),
    path("webhooks/<str:webhook_id>/enable", webhooks.WebhookEnableView.as_view()),
    path("webhooks/<str:webhook_id>/test", webhooks.WebhookTestView.as_view()),
    path("webhooks/<str:webhook_id>/deliveries", webhooks.DeliveriesView.as_view()),
    path(
        "webhooks/<str:webhook_id>/deliveries/<str:delivery_id>/replay",
        webhooks.DeliveryReplayView.as_view(),
    ),
    path("vendor-work/<str:token>/data", vendor_work.send_data, name="vendor-data"),
    path("vendor-work/<str:token>/delivery", vendor_work.take_delivery, name="vendor-delivery"),
    re_path(r"^.*$", UnknownAddressView.as_view()),
]
