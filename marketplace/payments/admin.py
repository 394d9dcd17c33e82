"""The back office for money: everything can be seen, nothing can be edited."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin, TabularInline

from marketplace.payments.models import Earning, Entry, Hold, LedgerAccount, Posting


class ReadOnly:
    """The ledger is written by services alone; the database would refuse anything else."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class PostingInline(ReadOnly, TabularInline):
    model = Posting
    extra = 0


@admin.register(Entry)
class EntryAdmin(ReadOnly, ModelAdmin):
    list_display = ("booked_at", "kind", "reference", "memo", "actor")
    list_filter = ("kind",)
    search_fields = ("reference", "memo")
    ordering = ("-booked_at", "-pk")
    inlines = (PostingInline,)


@admin.register(LedgerAccount)
class LedgerAccountAdmin(ReadOnly, ModelAdmin):
    list_display = ("kind", "organisation", "balance_micros")
    list_filter = ("kind",)
    search_fields = ("organisation__name", "organisation__slug")
    list_select_related = ("organisation",)


@admin.register(Hold)
class HoldAdmin(ReadOnly, ModelAdmin):
    list_display = (
        "reference",
        "organisation",
        "status",
        "amount_micros",
        "charged_micros",
        "refunded_micros",
        "held_at",
    )
    list_filter = ("status",)
    search_fields = ("reference", "organisation__name")
    list_select_related = ("organisation",)


@admin.register(Earning)
class EarningAdmin(ReadOnly, ModelAdmin):
    list_display = (
        "organisation",
        "kind",
        "reference",
        "amount_micros",
        "accrued_at",
        "payable_at",
        "matured_at",
    )
    list_filter = ("kind",)
    search_fields = ("reference", "organisation__name")
    list_select_related = ("organisation",)
