from django.apps import AppConfig


class AuctionConfig(AppConfig):
    name = "marketplace.auction"
    label = "auction"
    verbose_name = "Auction"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from prometheus_client import REGISTRY

        from marketplace.auction.gauges import MarketCollector

        REGISTRY.register(MarketCollector())
