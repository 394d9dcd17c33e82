"""Below ``/internal/v1/``; the same addresses as in ``workers.protocol.messages``."""

from django.urls import URLPattern, URLResolver, path

from marketplace.api.internal import plans, questions, views

urlpatterns: list[URLPattern | URLResolver] = [
    path("join", views.join, name="node-join"),
    path("join/models", views.list_join_models, name="node-join-models"),
    path("join/step", views.note_join_step, name="node-join-step"),
    path("release", views.show_release, name="node-release"),
    path("token", views.rotate_token, name="node-token"),
    path("plans/session", views.open_plan_session, name="node-plan-session"),
    path("plans/next", plans.get_next_plan, name="node-plan-next"),
    path("questions/next", questions.get_next_questions, name="node-questions-next"),
    path("questions/written", questions.take_written, name="node-questions-written"),
    path("exports", views.take_export_refusal, name="node-export-refused"),
    path("exports/<str:token>/adapter", views.send_export_adapter, name="node-export-adapter"),
    path("exports/<str:token>/file", views.take_export, name="node-export-file"),
    path("checks", views.take_check_result, name="node-check-result"),
    path("checks/<str:token>/blobs/<str:name>", views.send_check_blob, name="node-check-blob"),
    path(
        "questions/<str:token>/blobs/<str:name>",
        views.send_question_blob,
        name="node-question-blob",
    ),
    path("heartbeat", views.take_heartbeat, name="node-heartbeat"),
    path("turn", views.answer_turn, name="node-turn"),
    path("progress", views.take_progress, name="node-progress"),
    path("result", views.take_result, name="node-result"),
    path("probes", views.take_probe_result, name="node-probe-result"),
    path("probes/<str:token>/blobs/<str:name>", views.send_probe_blob, name="node-probe-blob"),
    path(
        "leases/<str:lease_token>/checkpoints/<int:step>",
        views.take_checkpoint,
        name="node-checkpoint",
    ),
    path("leases/<str:lease_token>/adapter", views.take_adapter, name="node-adapter"),
    path("leases/<str:lease_token>/blobs/<str:name>", views.send_blob, name="node-blob"),
]
