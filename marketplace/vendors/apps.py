from django.apps import AppConfig


class VendorsConfig(AppConfig):
    name = "marketplace.vendors"
