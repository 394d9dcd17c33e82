"""The Celery application of the market; GPU nodes have one of their own."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings.dev")

app = Celery("finetender")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
