from django.apps import AppConfig


class WebConfig(AppConfig):
    name = "marketplace.web"
    label = "web"
