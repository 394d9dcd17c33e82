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
    path("errands/<str:token>/result", views.take_errand_result, name="node-errand-result"),
    path("errands/<str:token>/file", views.take_errand_file, name="node-errand-file"),
    path("errands/<str:token>/blobs/<str:name>", views.send_errand_blob, name="node-errand-blob"),
    path(
        "questions/<str:token>/blobs/<str:name>",
        views.send_question_blob,
        name="node-question-blob",
    ),
    path("heartbeat", views.take_heartbeat, name="node-heartbeat"),
    path("turn", views.answer_turn, name="node-turn"),
    path("progress", views.take_progress, name="node-progress"),
    path("result", views.take_result, name="node-result"),
    path(
        "leases/<str:lease_token>/checkpoints/<int:step>",
        views.take_checkpoint,
        name="node-checkpoint",
    ),
    path("leases/<str:lease_token>/adapter", views.take_adapter, name="node-adapter"),
    path("leases/<str:lease_token>/blobs/<str:name>", views.send_blob, name="node-blob"),
]
