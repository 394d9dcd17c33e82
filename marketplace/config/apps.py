from django.apps import AppConfig


class ConfigConfig(AppConfig):
    name = "marketplace.config"
    label = "config"
