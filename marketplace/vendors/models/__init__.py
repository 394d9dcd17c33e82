"""Vendors, what they ask, and the preparations of admitted bids."""

from marketplace.vendors.models.opinions import RowOpinion
from marketplace.vendors.models.plans import DataPlan
from marketplace.vendors.models.preparations import (
    DISPUTABLE_FOR,
    KNOWN_ANSWERS_FAIL,
    DataAccess,
    Dispute,
    Preparation,
    PreparationStatus,
)
from marketplace.vendors.models.reports import DataReport
from marketplace.vendors.models.rows import RowEdit, RowState, WorkRow
from marketplace.vendors.models.vendors import (
    AnswerKind,
    EndpointCount,
    Listing,
    Vendor,
    VendorKind,
)

__all__ = [
    "DISPUTABLE_FOR",
    "KNOWN_ANSWERS_FAIL",
    "AnswerKind",
    "DataAccess",
    "DataPlan",
    "DataReport",
    "Dispute",
    "EndpointCount",
    "Listing",
    "Preparation",
    "PreparationStatus",
    "RowEdit",
    "RowOpinion",
    "RowState",
    "Vendor",
    "VendorKind",
    "WorkRow",
]
