from django.apps import AppConfig


class LiveConfig(AppConfig):
    name = "marketplace.live"
    label = "live"
