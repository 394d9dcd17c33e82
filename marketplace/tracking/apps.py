from django.apps import AppConfig


class TrackingConfig(AppConfig):
    name = "marketplace.tracking"
    label = "tracking"
