from django.apps import AppConfig


class ChecksConfig(AppConfig):
    name = "marketplace.checks"
    label = "checks"
