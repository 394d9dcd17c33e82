from django.apps import AppConfig


class WarmConfig(AppConfig):
    name = "marketplace.warm"
    label = "warm"
