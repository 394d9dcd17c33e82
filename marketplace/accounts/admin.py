"""The back office for people, organisations and keys."""

from typing import Any

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.contrib.auth.models import Group
from django.http import HttpRequest
from unfold.admin import ModelAdmin, TabularInline

from marketplace.accounts.models import ApiKey, Invitation, Membership, Organisation, User

# Roles and capabilities say who may do what; Django's groups would be a second way.
admin.site.unregister(Group)
# One sign-in for all: limited by address and account, and asking for the second factor.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]


class MembershipInline(TabularInline):
    model = Membership
    extra = 0
    autocomplete_fields = ("user", "organisation")


@admin.register(User)
class UserAdmin(ModelAdmin):
    list_display = ("email", "name", "is_operator", "is_active", "last_login")
    list_filter = ("is_operator", "is_active")
    search_fields = ("email", "name")
    ordering = ("email",)
    fields = ("email", "name", "is_operator", "is_active", "is_superuser", "last_login")
    readonly_fields = ("last_login",)
    inlines = (MembershipInline,)

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        if not change:
            # The person sets a password with "forgotten password".
            obj.set_unusable_password()
        super().save_model(request, obj, form, change)
        Organisation.objects.get_or_create_personal(obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Organisation)
class OrganisationAdmin(ModelAdmin):
    list_display = ("name", "slug", "is_provider", "created_at")
    list_filter = ("is_provider",)
    search_fields = ("name", "slug", "id")
    ordering = ("name",)
    autocomplete_fields = ("personal_for",)
    inlines = (MembershipInline,)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin):
    """Keys are made by their owners; here they can be seen and revoked."""

    list_display = ("name", "prefix", "organisation", "created_by", "last_used_at", "revoked_at")
    search_fields = ("name", "prefix", "organisation__name")
    fields = (
        "name",
        "prefix",
        "organisation",
        "created_by",
        "scopes",
        "expires_at",
        "last_used_at",
        "revoked_at",
    )
    readonly_fields = tuple(f for f in fields if f != "revoked_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Invitation)
class InvitationAdmin(ModelAdmin):
    list_display = ("email", "organisation", "role", "invited_by", "expires_at", "accepted_at")
    search_fields = ("email", "organisation__name")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
