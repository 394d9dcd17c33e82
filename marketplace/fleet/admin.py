"""The back office for the fleet: zones and nodes can be seen, and a node drained or put back."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from marketplace.accounts.models import User
from marketplace.common import clock
from marketplace.common.back_office import OperatorsView
from marketplace.common.errors import UserError
from marketplace.fleet.models import Ask, GpuType, JoinToken, Node, Provider, Zone
from marketplace.fleet.services import (
    drain_node,
    lift_node_suspension,
    reset_node_speed,
    suspend_node,
    undrain_node,
)


@admin.register(Zone)
class ZoneAdmin(OperatorsView):
    list_display = ("name", "base_model_name", "slot_s", "horizon_slots", "is_open")
    list_filter = ("is_open",)


@admin.register(Node)
class NodeAdmin(OperatorsView):
    list_display = (
        *("name", "zone", "provider", "gpu_type", "tier", "status"),
        *("compute_capacity", "memory_gb", "ask_micros", "last_heartbeat_at"),
    )
    list_filter = ("status", "tier", "zone", "gpu_type")
    search_fields = ("id", "name", "provider__organisation__name")
    list_select_related = ("zone", "provider__organisation", "gpu_type")
    exclude = ("api_token_hash", "old_api_token_hash", "plan_session")
    actions = ("drain", "put_back", "reset_speed", "suspend", "lift_suspension")

    @admin.action(description="Drain: sell no more of it", permissions=["view"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        _apply_each(self, request, queryset, drain_node)

    @admin.action(description="Put back on sale", permissions=["view"])
    def put_back(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        _apply_each(self, request, queryset, undrain_node)

    @admin.action(description="Forget measured speeds: go by the self-test", permissions=["view"])
    def reset_speed(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        _apply_each(self, request, queryset, lambda node, now: reset_node_speed(node=node))

    @admin.action(description="Suspend: trust it with no job", permissions=["view"])
    def suspend(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        _apply_each(
            self,
            request,
            queryset,
            partial(
                suspend_node, suspended_by=cast(User, request.user), reason="From the back office."
            ),
        )

    @admin.action(description="Lift the suspension", permissions=["view"])
    def lift_suspension(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        lift = partial(lift_node_suspension, lifted_by=cast(User, request.user))
        _apply_each(self, request, queryset, lift)


@admin.register(Provider)
class ProviderAdmin(OperatorsView):
    list_display = ("organisation", "created_at", "approved_at", "approved_by", "suspended_at")
    list_select_related = ("organisation", "approved_by")


@admin.register(Ask)
class AskAdmin(OperatorsView):
    list_display = ("node", "ask_micros", "set_by", "set_at")
    list_select_related = ("node", "set_by")
    ordering = ("-set_at", "-pk")


@admin.register(JoinToken)
class JoinTokenAdmin(OperatorsView):
    list_display = ("id", "provider", "zone", "created_at", "expires_at", "used_at", "node")
    list_select_related = ("provider__organisation", "zone", "node")
    exclude = ("secret_hash",)
    ordering = ("-created_at",)


@admin.register(GpuType)
class GpuTypeAdmin(OperatorsView):
    list_display = ("name", "created_at")


def _apply_each(site: ModelAdmin, request: HttpRequest, nodes: QuerySet[Node], change: Any) -> None:
    for node in nodes:
        try:
            change(node=node, now=clock.now())
        except UserError as error:
            site.message_user(request, f"{node.name}: {error.message}", messages.ERROR)
        else:
            site.message_user(request, f"{node.name} is done.", messages.SUCCESS)
