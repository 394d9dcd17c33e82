from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "marketplace.webhooks"
    label = "webhooks"
