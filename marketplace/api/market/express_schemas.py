"""The express lane in the OpenAPI document."""

from __future__ import annotations

from rest_framework import serializers as s

from marketplace.api.market.schemas import shape, usd_field

EXPRESS_QUOTE = shape(
    "ExpressQuote",
    {
        "zone": s.CharField(),
        "least_slo_s": s.FloatField(help_text="The shortest SLO that idle seats keep."),
        "longest_slo_s": s.FloatField(),
        "prices": shape("ExpressPrice", {"slo_s": s.FloatField(), "price": usd_field()}, many=True),
    },
)
EXPRESS_ANSWER = shape(
    "ExpressAnswer",
    {
        "id": s.CharField(),
        "object": s.ChoiceField(["express_request"]),
        "status": s.ChoiceField(["pending", "admitted", "offered", "refused"]),
        "zone": s.CharField(),
        "dataset_id": s.CharField(),
        "name": s.CharField(),
        "slo_s": s.FloatField(help_text="As asked for."),
        "adapter": s.DictField(),
        "training": s.DictField(),
        "created_at": s.DateTimeField(),
        "answered_at": s.DateTimeField(allow_null=True),
        "certified_slo_s": s.FloatField(
            allow_null=True, help_text="Certified, or of an offer: what could be."
        ),
        "due_at": s.DateTimeField(allow_null=True),
        "price": usd_field(allow_null=True),
        "seats": s.IntegerField(allow_null=True, help_text="Of one node, that the job has."),
        "least_slo_s": s.FloatField(allow_null=True),
        "reason": s.CharField(allow_null=True),
        "position": s.IntegerField(allow_null=True, help_text="Of the answer in the zone's log."),
        "decision_hash": s.CharField(allow_null=True),
        "bid_id": s.CharField(allow_null=True),
        "job_id": s.CharField(allow_null=True),
        "lookup": shape(
            "ExpressLookup",
            {
                "candidates": s.IntegerField(),
                "seconds": s.FloatField(),
                "own_loss": s.FloatField(help_text="With the prompt asked for."),
                "loss": s.FloatField(help_text="With the prompt that the job began with."),
                "is_from_bank": s.BooleanField(),
            },
            allow_null=True,
        ),
    },
)
