from django.urls import path

from marketplace.console import (
    express,
    installing,
    join_progress,
    machines,
    money,
    nodes,
    overview,
    payouts,
    providers,
    rates,
    vendor_oversight,
    vendor_work,
    vendors,
)

urlpatterns = [
    path("nodes", nodes.show_nodes, name="node_list"),
    path("nodes/new", nodes.add_node, name="node_new"),
    path("nodes/joining/<str:token_id>", join_progress.show_joining, name="node_joining"),
    path("install/<str:name>", installing.download_install_file, name="install_file"),
    path("nodes/rates", rates.show_rates, name="node_rates"),
    path("nodes/provide", providers.ask_to_provide, name="provider_ask"),
    path("nodes/payouts", payouts.show_payouts, name="payouts"),
    path("nodes/payouts/set-up", payouts.set_up_payouts, name="payouts_set_up"),
    path("nodes/payouts/<str:month>", payouts.show_statement, name="statement"),
    path("nodes/payouts/<str:month>/csv", payouts.download_statement, name="statement_csv"),
    path("nodes/<str:node_id>/ask", nodes.change_ask, name="node_ask"),
    path("nodes/<str:node_id>/drain", nodes.switch_drain, name="node_drain"),
    path("nodes/<str:node_id>/hours", nodes.change_hours, name="node_hours"),
    path("nodes/<str:node_id>/reset-speed", nodes.reset_speed, name="node_reset_speed"),
    path("nodes/<str:node_id>/leave", nodes.take_node_away, name="node_leave"),
    path("nodes/<str:node_id>/revoke", nodes.end_node_token, name="node_revoke"),
    path("nodes/tokens/<str:token_id>/revoke", nodes.end_join_token, name="join_token_revoke"),
    path("vendor", vendors.show_vendors, name="vendor_list"),
    path("vendor/new", vendors.edit_vendor, name="vendor_new"),
    path("vendor/preparations/<str:preparation_id>", vendor_work.show_work, name="vendor_work"),
    path(
        "vendor/preparations/<str:preparation_id>/next", vendor_work.take_next, name="vendor_next"
    ),
    path(
        "vendor/preparations/<str:preparation_id>/rows/<int:number>",
        vendor_work.edit_row,
        name="vendor_row",
    ),
    path(
        "vendor/preparations/<str:preparation_id>/accept",
        vendor_work.accept_many,
        name="vendor_accept",
    ),
    path(
        "vendor/preparations/<str:preparation_id>/undo", vendor_work.undo_last, name="vendor_undo"
    ),
    path(
        "vendor/preparations/<str:preparation_id>/hand-in",
        vendor_work.hand_in_rows,
        name="vendor_hand_in",
    ),
    path("vendor/preparations/<str:preparation_id>/link", vendors.show_link, name="vendor_link"),
    path("vendor/<str:vendor_id>", vendors.edit_vendor, name="vendor_edit"),
    path("vendor/<str:vendor_id>/pause", vendors.switch_pause, name="vendor_pause"),
    path("vendor/<str:vendor_id>/secret", vendors.change_secret, name="vendor_secret"),
    path("operator/vendors", vendor_oversight.show_all_vendors, name="operator_vendors"),
    path("operator/vendors/<str:vendor_id>", vendor_oversight.switch_vendor, name="vendor_switch"),
    path(
        "operator/disputes/<str:dispute_id>",
        vendor_oversight.answer_dispute,
        name="dispute_answer",
    ),
    path("operator", overview.show_overview, name="operator"),
    path("operator/express", express.show_lanes, name="operator_express"),
    path("operator/money", money.show_money, name="operator_money"),
    path("operator/money/freezes/<str:freeze_id>", money.end_freeze, name="freeze_lift"),
    path("operator/money/payouts/<str:payout_id>", money.retry, name="payout_retry"),
    path("operator/machines", machines.show_machines, name="operator_machines"),
    path("operator/providers", providers.show_providers, name="operator_providers"),
    path(
        "operator/providers/<str:provider_id>/verify",
        providers.switch_verification,
        name="provider_verify",
    ),
    path(
        "operator/providers/<str:provider_id>/withdraw",
        providers.end_approval,
        name="provider_withdraw",
    ),
    path(
        "operator/providers/<str:provider_id>/suspend",
        providers.switch_provider_suspension,
        name="provider_suspend",
    ),
    path(
        "operator/nodes/<str:node_id>/suspend",
        providers.switch_node_suspension,
        name="node_suspend",
    ),
    path(
        "operator/nodes/<str:node_id>/revoke",
        providers.end_any_node_token,
        name="operator_node_revoke",
    ),
    path(
        "operator/tokens/<str:token_id>/revoke",
        providers.end_any_join_token,
        name="operator_token_revoke",
    ),
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
]
