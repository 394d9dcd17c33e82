from django.apps import AppConfig


class FleetConfig(AppConfig):
    name = "marketplace.fleet"
    label = "fleet"
