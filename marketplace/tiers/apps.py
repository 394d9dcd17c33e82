from django.apps import AppConfig


class TiersConfig(AppConfig):
    name = "marketplace.tiers"
    label = "tiers"
