from django.apps import AppConfig


class ExpressConfig(AppConfig):
    name = "marketplace.express"
    label = "express"

    def ready(self) -> None:
        from prometheus_client import REGISTRY

        from marketplace.auction.lane.sweep import BETWEEN_BATCHES
        from marketplace.express.answering import answer_between_batches
        from marketplace.express.gauges import ExpressCollector

        REGISTRY.register(ExpressCollector())
        # Customers of the lane wait for one batch of bids, not for a crowd of them.
        BETWEEN_BATCHES.append(answer_between_batches)
