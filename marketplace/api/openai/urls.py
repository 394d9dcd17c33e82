"""Every address that OpenAI's clients call."""

from django.urls import path, re_path

from marketplace.api.openai import catalogue, chat, files, fine_tuning, responses, uploads
from marketplace.api.openai.views import UnknownOpenAiAddressView
from marketplace.api.openapi import OpenAiSchemaView

_JOB = "fine_tuning/jobs/<str:job_id>"

urlpatterns = [
    path("schema", OpenAiSchemaView.as_view()),
    path("files", files.FilesView.as_view()),
    path("files/<str:file_id>", files.FileView.as_view()),
    path("files/<str:file_id>/content", files.FileContentView.as_view()),
    path("uploads", uploads.UploadsView.as_view()),
    path("uploads/<str:upload_id>/parts", uploads.UploadPartsView.as_view()),
    path("uploads/<str:upload_id>/complete", uploads.UploadCompleteView.as_view()),
    path("uploads/<str:upload_id>/cancel", uploads.UploadCancelView.as_view()),
    path("fine_tuning/jobs", fine_tuning.FineTuningJobsView.as_view()),
    path(_JOB, fine_tuning.FineTuningJobView.as_view()),
    path(f"{_JOB}/cancel", fine_tuning.FineTuningJobCancelView.as_view()),
    path(f"{_JOB}/pause", fine_tuning.FineTuningJobPauseView.as_view()),
    path(f"{_JOB}/resume", fine_tuning.FineTuningJobResumeView.as_view()),
    path(f"{_JOB}/events", fine_tuning.FineTuningJobEventsView.as_view()),
    path(f"{_JOB}/checkpoints", fine_tuning.FineTuningJobCheckpointsView.as_view()),
    path("chat/completions", chat.ChatView.as_view()),
    path("completions", chat.CompletionView.as_view()),
    path("responses", responses.ResponsesView.as_view()),
    path("models", catalogue.ModelsView.as_view()),
    path("models/<path:model>", catalogue.ModelView.as_view()),
    re_path("^", UnknownOpenAiAddressView.as_view()),
]
