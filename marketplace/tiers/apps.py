from django.apps import AppConfig


class TiersConfig(AppConfig):
    name = "marketplace.tiers"
    label = "tiers"

    def ready(self) -> None:
        from prometheus_client import REGISTRY

        from marketplace.checks.scores import register_renter
        from marketplace.tiers.check_machines import can_rent_checker
        from marketplace.tiers.gauges import TiersCollector

        register_renter(can_rent_checker)
        REGISTRY.register(TiersCollector())
