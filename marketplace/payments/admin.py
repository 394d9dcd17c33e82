"""The back office for money: everything can be seen, a grant can be made, nothing edited."""

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from unfold.admin import ModelAdmin, TabularInline
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from marketplace.accounts.models import Organisation
from marketplace.common import clock
from marketplace.common.back_office import ReadOnly
from marketplace.common.errors import UserError
from marketplace.common.ids import new_id
from marketplace.common.money import to_micros
from marketplace.payments.models import Earning, Entry, Hold, LedgerAccount, Posting
from marketplace.payments.services import grant_money


class PostingInline(ReadOnly, TabularInline):
    model = Posting
    extra = 0


class GrantForm(forms.ModelForm):
    """What an operator fills in to grant a balance."""

    organisation = forms.ModelChoiceField(
        Organisation.objects.order_by("name"), widget=UnfoldAdminSelectWidget
    )
    dollars = forms.CharField(widget=UnfoldAdminTextInputWidget, help_text="such as 250 or 12.50")
    #: Made with the form, so that sending one form twice grants once.
    reference = forms.CharField(widget=forms.HiddenInput, initial=lambda: new_id("grant"))

    class Meta:
        model = Entry
        fields = ("organisation", "dollars", "memo", "reference")

    def clean_dollars(self) -> int:
        """Micro-dollars."""
        try:
            micros = to_micros(self.cleaned_data["dollars"])
        except UserError as error:
            raise ValidationError(error.message) from error
        if micros == 0:
            raise ValidationError("Grant more than nothing.")
        return micros


@admin.register(Entry)
class EntryAdmin(ReadOnly, ModelAdmin):
    """Adding an entry here means granting a balance; all else comes from bids and jobs."""

    list_display = ("booked_at", "kind", "reference", "memo", "actor")
    list_filter = ("kind",)
    search_fields = ("reference", "memo")
    ordering = ("-booked_at", "-pk")
    list_select_related = ("actor",)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return getattr(request.user, "is_operator", False)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any):
        return super().get_form(
            request, obj, change, **({} if obj else {"form": GrantForm} | kwargs)
        )

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = ("booked_at", "kind", "reference", "memo", "actor")
        return shown if obj else GrantForm.Meta.fields

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return [PostingInline] if obj else []

    def save_model(self, request: HttpRequest, obj: Entry, form: Any, change: bool) -> None:
        entry = grant_money(
            organisation=form.cleaned_data["organisation"],
            amount_micros=form.cleaned_data["dollars"],
            granted_by=request.user,  # type: ignore[arg-type]
            reference=form.cleaned_data["reference"],
            memo=form.cleaned_data["memo"],
            now=clock.now(),
        )
        # The admin goes on to log and show what was added.
        obj.pk = entry.pk
        obj.refresh_from_db()


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
