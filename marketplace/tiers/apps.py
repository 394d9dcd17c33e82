from django.apps import AppConfig


class TiersConfig(AppConfig):
    name = "marketplace.tiers"
    label = "tiers"

    def ready(self) -> None:
        from prometheus_client import REGISTRY

        from marketplace.tiers.gauges import TiersCollector

        REGISTRY.register(TiersCollector())
