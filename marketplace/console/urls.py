from django.urls import path

from marketplace.console import machines, providers, views

urlpatterns = [
    path("nodes", views.node_list, name="node_list"),
    path("nodes/new", views.node_new, name="node_new"),
    path("nodes/provide", providers.ask, name="provider_ask"),
    path("nodes/<str:node_id>/ask", views.node_ask, name="node_ask"),
    path("nodes/<str:node_id>/drain", views.node_drain_switch, name="node_drain"),
    path("operator", views.operator, name="operator"),
    path("operator/machines", machines.operator_machines, name="operator_machines"),
    path(
        "operator/providers/<str:provider_id>/approve", providers.approve, name="provider_approve"
    ),
    path("operator/zones/<str:zone_id>/policy", views.zone_policy, name="zone_policy"),
]
