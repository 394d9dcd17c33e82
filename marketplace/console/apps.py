from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "marketplace.console"
    label = "console"
