from django.apps import AppConfig


class CommonConfig(AppConfig):
    name = "marketplace.common"
    label = "common"
