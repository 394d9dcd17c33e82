from django.apps import AppConfig


class ExpressConfig(AppConfig):
    name = "marketplace.express"
    label = "express"

    def ready(self) -> None:
        from prometheus_client import REGISTRY

        from marketplace.express.gauges import ExpressCollector

        REGISTRY.register(ExpressCollector())
