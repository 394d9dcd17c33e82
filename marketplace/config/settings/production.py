"""Behind TLS; refuses to start with anything a developer's machine may have."""

from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from marketplace.config.settings import environment
from marketplace.config.settings.base import *  # noqa: F403
from marketplace.config.settings.base import ALLOWED_HOSTS, STORAGES

for _name in (
    "SECRET_KEY",
    "DATABASE_URL",
    "REDIS_URL",
    "PUBLIC_URL",
    "ALLOWED_HOSTS",
    "METRICS_TOKEN",
):
    if not environment.text(_name, ""):
        raise ImproperlyConfigured(f"Set the environment variable {_name} in production.")

SECRET_KEY = environment.text("SECRET_KEY")
if len(SECRET_KEY) < 50 or "insecure" in SECRET_KEY:
    raise ImproperlyConfigured("SECRET_KEY must be 50 random characters or more in production.")
if any(len(key) < 50 for key in environment.words("DATA_KEYS")):
    raise ImproperlyConfigured("Each of DATA_KEYS must be 50 random characters or more.")
if (
    urlsplit(environment.text("REDIS_URL")).scheme != "unix"
    and not urlsplit(environment.text("REDIS_URL")).password
):
    raise ImproperlyConfigured(
        "REDIS_URL must hold a password: without one, any process that reaches Redis controls it."
    )
if environment.flag("DEBUG", default=False):
    raise ImproperlyConfigured("DEBUG is set; production does not run with it.")
if environment.number("DEMO_MONEY_USD", 0) > 0:
    raise ImproperlyConfigured("DEMO_MONEY_USD is set; production does not give money away.")
if environment.text("STRIPE_API_URL", ""):
    raise ImproperlyConfigured("STRIPE_API_URL is set; production pays through Stripe itself.")
if environment.flag("STRIPE_TAX", default=False) and not environment.text("STRIPE_SECRET_KEY", ""):
    raise ImproperlyConfigured("STRIPE_TAX asks the gateway; set STRIPE_SECRET_KEY too.")
if "*" in ALLOWED_HOSTS:
    raise ImproperlyConfigured("ALLOWED_HOSTS must name the hosts; '*' lets any name in.")
if urlsplit(environment.text("PUBLIC_URL")).scheme != "https":
    raise ImproperlyConfigured("PUBLIC_URL must begin with https:// in production.")

DEBUG = False
SECURE_SSL_REDIRECT = environment.flag("SECURE_SSL_REDIRECT", default=True)
SECURE_REDIRECT_EXEMPT = [r"^healthz", r"^metrics$"]
# Set by the proxy that ends TLS; it must drop what a client sends under these names.
TRUSTED_PROXY_COUNT = int(environment.number("TRUSTED_PROXY_COUNT", 1))
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_HSTS_SECONDS = int(environment.number("SECURE_HSTS_SECONDS", 365 * 24 * 3600))
# For the operator's whole domain, and hard to take back: chosen, not given.
SECURE_HSTS_INCLUDE_SUBDOMAINS = environment.flag("SECURE_HSTS_INCLUDE_SUBDOMAINS", default=False)
SECURE_HSTS_PRELOAD = environment.flag("SECURE_HSTS_PRELOAD", default=False)
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
EMAIL_HOST = environment.text("EMAIL_HOST", "localhost")
EMAIL_PORT = int(environment.number("EMAIL_PORT", 25))
EMAIL_HOST_USER = environment.text("EMAIL_HOST_USER", "")
EMAIL_HOST_PASSWORD = environment.text("EMAIL_HOST_PASSWORD", "")
#: Seconds for each answer of the server; without it a silent one holds a worker for good.
EMAIL_TIMEOUT = 30
EMAIL_USE_TLS = environment.flag("EMAIL_USE_TLS", default=False)
ACCOUNT_EMAIL_VERIFICATION = environment.text("EMAIL_VERIFICATION", "mandatory")
ACCOUNT_EMAIL_VERIFICATION_BY_CODE_ENABLED = ACCOUNT_EMAIL_VERIFICATION == "mandatory"
STORAGES = STORAGES | {
    "staticfiles": {"BACKEND": "servestatic.storage.CompressedManifestStaticFilesStorage"}
}
ACCESS_LOG = environment.flag("ACCESS_LOG", default=True)
