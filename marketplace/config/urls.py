"""Every address of the site."""

from django.contrib import admin
from django.urls import include, path

from marketplace.auction.probes import HealthPart
from marketplace.config.health import health_of_part, healthz, metrics

handler500 = "marketplace.web.views.failures.show_failure"

# Here, where pages are served: lane, worker and clock have no back office (10 MB each).
admin.autodiscover()

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    *(
        path(f"healthz/{part}", health_of_part, {"part": part}, name=f"healthz_{part}")
        for part in HealthPart
    ),
    path("metrics", metrics, name="metrics"),
    path("admin/", admin.site.urls),
    path("accounts/", include("allauth.urls")),
    path("api/", include("marketplace.api.urls")),
    path("v1/", include("marketplace.api.openai.urls")),
    path("internal/v1/", include("marketplace.api.internal.urls")),
    path("", include("marketplace.live.urls")),
    path("", include("marketplace.console.urls")),
    path("", include("marketplace.web.urls")),
]
