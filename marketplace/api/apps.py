from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "marketplace.api"
    label = "api"

    def ready(self) -> None:
        # Registers itself with drf-spectacular.
        from marketplace.api import openapi  # noqa: F401
