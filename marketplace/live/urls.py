from django.urls import path

from marketplace.live import views

urlpatterns = [
    path("live/jobs/<str:job_id>", views.job_poll, name="job_poll"),
    path("live/market/<slug:zone_name>", views.market_poll, name="market_poll"),
]
