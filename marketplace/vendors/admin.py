"""The back office for vendors: approved, paused, and what each delivered."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from marketplace.accounts.models import User
from marketplace.common import clock
from marketplace.common.back_office import OperatorsView
from marketplace.vendors.listing import approve_vendor, pause_vendor, resume_vendor
from marketplace.vendors.models import Listing, Preparation, Vendor
from marketplace.vendors.selectors import measure_reliability


@admin.register(Vendor)
class VendorAdmin(OperatorsView):
    list_display = (
        *("name", "organisation", "kind", "minimum_micros", "approved_at", "paused_at"),
        "reliability",
    )
    list_filter = ("kind",)
    list_select_related = ("organisation",)
    actions = ("approve", "pause", "resume")

    @admin.display(description="Delivered in time")
    def reliability(self, vendor: Vendor) -> str:
        share = measure_reliability([vendor.pk])[vendor.pk]
        return "no delivery yet" if share is None else f"{share:.0%}"

    @admin.action(description="Approve: let it get work", permissions=["view"])
    def approve(self, request: HttpRequest, queryset: QuerySet[Vendor]) -> None:
        for vendor in queryset:
            approve_vendor(vendor=vendor, approved_by=_who(request), now=clock.now())
        _say(self, request, queryset)

    @admin.action(description="Pause: no new work", permissions=["view"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Vendor]) -> None:
        for vendor in queryset:
            pause_vendor(vendor=vendor, paused_by=_who(request), now=clock.now())
        _say(self, request, queryset)

    @admin.action(description="Resume", permissions=["view"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Vendor]) -> None:
        for vendor in queryset:
            resume_vendor(vendor=vendor, resumed_by=_who(request))
        _say(self, request, queryset)


@admin.register(Listing)
class ListingAdmin(OperatorsView):
    list_display = ("vendor", "zone", "rows_per_slot")
    list_select_related = ("vendor", "zone")


@admin.register(Preparation)
class PreparationAdmin(OperatorsView):
    list_display = (
        *("id", "vendor", "job", "status", "price_micros", "due_at", "delivered_at"),
        *("rows_in", "rows_out", "refund_micros"),
    )
    list_filter = ("status", "vendor")
    list_select_related = ("vendor", "job")


def _who(request: HttpRequest) -> User:
    return cast(User, request.user)


def _say(view: Any, request: HttpRequest, queryset: QuerySet[Vendor]) -> None:
    view.message_user(request, f"Done for {queryset.count()}.", messages.SUCCESS)
