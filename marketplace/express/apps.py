from django.apps import AppConfig


class ExpressConfig(AppConfig):
    name = "marketplace.express"
    label = "express"
