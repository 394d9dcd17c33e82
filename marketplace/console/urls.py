from django.urls import path

from marketplace.console import machines, nodes, overview, providers

urlpatterns = [
    path("nodes", nodes.show_nodes, name="node_list"),
    path("nodes/new", nodes.add_node, name="node_new"),
    path("nodes/provide", providers.ask_to_provide, name="provider_ask"),
    path("nodes/<str:node_id>/ask", nodes.change_ask, name="node_ask"),
    path("nodes/<str:node_id>/drain", nodes.switch_drain, name="node_drain"),
    path("nodes/<str:node_id>/leave", nodes.take_node_away, name="node_leave"),
    path("operator", overview.show_overview, name="operator"),
    path("operator/machines", machines.show_machines, name="operator_machines"),
    path(
        "operator/providers/<str:provider_id>/approve",
        providers.approve_to_provide,
        name="provider_approve",
    ),
    path(
        "operator/funds/<str:request_id>",
        overview.answer_funds_request,
        name="funds_answer",
    ),
    path("operator/zones/<str:zone_id>/policy", overview.change_zone_policy, name="zone_policy"),
]
