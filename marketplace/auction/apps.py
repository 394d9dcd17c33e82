from django.apps import AppConfig


class AuctionConfig(AppConfig):
    name = "marketplace.auction"
    label = "auction"
    verbose_name = "Auction"
    default_auto_field = "django.db.models.BigAutoField"
