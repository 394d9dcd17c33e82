from django.urls import path

from marketplace.live import views

urlpatterns = [
    path("live/jobs/<str:job_id>", views.poll_job, name="job_poll"),
    path("live/market/<slug:zone_name>", views.poll_market, name="market_poll"),
]
