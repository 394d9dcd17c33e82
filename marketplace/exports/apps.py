from django.apps import AppConfig


class ExportsConfig(AppConfig):
    name = "marketplace.exports"
    label = "exports"
