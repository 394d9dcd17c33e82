"""What Django and libraries read, for every way of running; the market's own are in ``market``.

Environment: ``DATABASE_URL``, ``REDIS_URL``, ``SECRET_KEY``, ``ALLOWED_HOSTS`` and the ones read
here and there; ``environment`` turns a wrong value into a clear error.
"""

from typing import Any
from urllib.parse import urlsplit

import dj_database_url
from csp.constants import NONCE, NONE, SELF

from marketplace.common.db.pooled import POOL_OPTIONS
from marketplace.config.settings import environment, schedule
from marketplace.config.settings.market import *  # noqa: F403
from marketplace.config.settings.market import BASE_DIR, DATA_DIR, PUBLIC_URL

_PUBLIC = urlsplit(PUBLIC_URL)

DEBUG = False
SECRET_KEY = environment.text("SECRET_KEY", "")
#: Earlier ones, under which sessions, links and sealed secrets may still be read.
SECRET_KEY_FALLBACKS = environment.words("SECRET_KEY_FALLBACKS")
#: What seals other people's secrets, the newest first; without any, ``SECRET_KEY`` does.
DATA_KEYS = environment.words("DATA_KEYS")
ALLOWED_HOSTS = environment.words("ALLOWED_HOSTS", f"{_PUBLIC.hostname},localhost,127.0.0.1,[::1]")
CSRF_TRUSTED_ORIGINS = environment.words(
    "CSRF_TRUSTED_ORIGINS", f"{_PUBLIC.scheme}://{_PUBLIC.netloc}"
)

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    # First, so that the accounts app can take its groups out of the admin.
    "django.contrib.auth",
    "marketplace.config",
    "marketplace.api",
    "marketplace.web",
    "marketplace.console",
    "marketplace.live",
    "marketplace.tiers",
    "marketplace.express",
    "marketplace.auction",
    "marketplace.vendors",
    "marketplace.warm",
    "marketplace.questions",
    "marketplace.checks",
    "marketplace.exports",
    "marketplace.jobs",
    "marketplace.payments",
    "marketplace.fleet",
    "marketplace.webhooks",
    "marketplace.tracking",
    "marketplace.accounts",
    "marketplace.common",
    "unfold",
    "unfold.contrib.filters",
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "channels",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    "csp",
    "django_cotton",
    "django_prometheus",
    "drf_spectacular",
    "pgtrigger",
    "rest_framework",
    "servestatic",
]

MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    # WhiteNoise's successor for ASGI: files are not read on the threads that pages need.
    "servestatic.middleware.ServeStaticMiddleware",
    "marketplace.config.security.ContentPolicyMiddleware",
    "marketplace.config.security.AdminContentPolicyMiddleware",
    "marketplace.config.security.ReadableTextMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "marketplace.accounts.second_factor.OperatorSecondFactorMiddleware",
    "marketplace.web.current_organisation.ActingMiddleware",
    "marketplace.accounts.audit.AuditMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]

#: What the API needs of it; ``marketplace.api.handler`` runs these hooks on the event loop.
API_MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "marketplace.config.security.CompressedAnswerMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "marketplace.config.security.ContentPolicyMiddleware",
    "marketplace.config.security.ReadableTextMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]

ROOT_URLCONF = "marketplace.config.urls"
ASGI_APPLICATION = "marketplace.config.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "marketplace.web.context.build_frame",
            ],
        },
    }
]

# --- PostgreSQL and Redis -------------------------------------------------------------------

DATABASE_URL = environment.text("DATABASE_URL", "postgresql://localhost/finetender")
#: Names the owner of the tables, for ``migrate`` and ``restore`` alone; no other process has it.
DATABASE_OWNER_URL = environment.text("DATABASE_OWNER_URL", "")
REDIS_URL = environment.text("REDIS_URL", "redis://127.0.0.1:6379/0")

DATABASES: dict[str, Any] = {"default": dj_database_url.parse(DATABASE_URL)}
if DATABASES["default"]["ENGINE"] != "django.db.backends.postgresql":
    raise environment.ImproperlyConfigured(
        "DATABASE_URL must name a PostgreSQL database, such as postgresql://localhost/finetender."
    )
DATABASES["default"]["ENGINE"] = "marketplace.common.db"
_OPTIONS = DATABASES["default"].setdefault("OPTIONS", {})
# A forgotten transaction or a stuck lock must not stop the auction for good. What is looked up many
# times a second is in memory, and a plan that is kept must not be one for a table still empty:
# cheap jumps make it use the index from the first row on.
_SESSION = {
    "lock_timeout": "15s",
    "idle_in_transaction_session_timeout": "120s",
    "random_page_cost": "1.1",
    # A host that is cut off frees its locks, and a lost server is noticed, within seconds: by
    # default TCP takes two hours. Without TCP (a socket of this machine) these say nothing.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
_OPTIONS |= {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10000,
}
_POOL_MAX = int(environment.number("DATABASE_POOL_MAX", 0))
if _POOL_MAX:
    # The web server's threads share a pool; one-connection processes (commands, Celery
    # workers, which fork) keep theirs instead.
    _OPTIONS["pool"] = POOL_OPTIONS | {"max_size": _POOL_MAX}
    # Nobody waits for longer: what a slow page asks must not pile up behind those who reload it.
    _SESSION["statement_timeout"] = "30s"
else:
    DATABASES["default"]["CONN_MAX_AGE"] = 300
if environment.flag("DATABASE_POOLER", default=False):
    DATABASES["default"]["SESSION_SETTINGS"] = _SESSION
else:
    _OPTIONS["options"] = " ".join(f"-c {name}={value}" for name, value in _SESSION.items())
# A connection that the server closed while it was idle is replaced before it is used.
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "OPTIONS": {"serializer": "marketplace.common.json_cache.JsonSerializer"},
    }
}
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL]},
    }
}

# --- Celery -----------------------------------------------------------------------------------

CELERY_BROKER_URL = environment.celery_broker(REDIS_URL)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    #: Seconds after which an unacknowledged task is given to another worker.
    "visibility_timeout": 3600,
    "socket_connect_timeout": 2,
    "socket_keepalive": True,
    "health_check_interval": 15,
}
CELERY_TASK_SERIALIZER = CELERY_RESULT_SERIALIZER = CELERY_EVENT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# Celery would open a database connection for each task, which costs more than most tasks do.
# ``config.celery`` replaces only connections that cannot be used, as Django does.
CELERY_DB_REUSE_MAX = 1_000_000_000
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TASK_ROUTES = schedule.ROUTES
CELERY_TASK_PUBLISH_RETRY_POLICY = {
    "max_retries": 2,
    "interval_start": 0,
    "interval_step": 0.2,
    "interval_max": 0.2,
}
CELERY_ENABLE_UTC = True
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULER = "marketplace.config.beat.RestingScheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 1
CELERY_BEAT_SCHEDULE = schedule.BEATS

# --- People -----------------------------------------------------------------------------------

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 10},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/home"
ACCOUNT_ADAPTER = "marketplace.accounts.adapter.AccountAdapter"
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = environment.text("EMAIL_VERIFICATION", "optional")
# Codes instead of links: the ids of users hold an underscore, which allauth's links refuse.
ACCOUNT_PASSWORD_RESET_BY_CODE_ENABLED = True
# allauth sends codes for addresses only where an address must be verified.
ACCOUNT_EMAIL_VERIFICATION_BY_CODE_ENABLED = ACCOUNT_EMAIL_VERIFICATION == "mandatory"
ACCOUNT_LOGOUT_ON_PASSWORD_CHANGE = True
ACCOUNT_REAUTHENTICATION_REQUIRED = True
ACCOUNT_SESSION_REMEMBER = True
# What counts from anywhere for one account is ten times what one address can use up: a stranger
# keeps nobody from signing in, or from being mailed a code, in a browser that is not known yet.
ACCOUNT_RATE_LIMITS = {
    # By address, and for one account by address (``AccountAdapter``).
    "login_failed": "10/m/ip,5/300s/key,20/h/key",
    "login_failed_anywhere": "200/h/key",
    # By address, and then by account: what an address was refused counts for no account.
    "reset_password": "5/m/ip,20/h/ip,200/h/key",
}
ACCOUNT_DEFAULT_HTTP_PROTOCOL = _PUBLIC.scheme
ACCOUNT_EMAIL_SUBJECT_PREFIX = "[Finetender] "
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = "Finetender"
DEFAULT_FROM_EMAIL = environment.text(
    "DEFAULT_FROM_EMAIL", f"Finetender <no-reply@{_PUBLIC.hostname}>"
)
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"

# --- Files and pages --------------------------------------------------------------------------

STATIC_URL = "/static/"
STATIC_ROOT = BASE_DIR / "marketplace" / "staticfiles"
MEDIA_ROOT = DATA_DIR / "media"
MEDIA_URL = "/media/"
#: Files lie in a bucket of an S3-compatible server, or below MEDIA_ROOT where none is named.
S3_BUCKET = environment.text("S3_BUCKET", "")
STORAGES = {
    "default": {
        "BACKEND": "marketplace.common.object_storage.ObjectStorage",
        "OPTIONS": {
            "bucket_name": S3_BUCKET,
            "location": environment.text("S3_PREFIX", ""),
            # None of it: Amazon's own endpoint, and keys of the machine's role.
            "endpoint_url": environment.text("S3_ENDPOINT_URL", "") or None,
            "region_name": environment.text("S3_REGION", "") or None,
            "access_key": environment.text("S3_ACCESS_KEY_ID", "") or None,
            "secret_key": environment.text("S3_SECRET_ACCESS_KEY", "") or None,
            "is_path_style": environment.flag("S3_PATH_STYLE", default=False),
        },
    }
    if S3_BUCKET
    else {"BACKEND": "marketplace.common.file_storage.FolderStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
LANGUAGE_CODE = "en-us"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "marketplace.api.described_operations.MarketSchema"}
SPECTACULAR_SETTINGS = {
    "TITLE": "Finetender",
    "DESCRIPTION": "Bid for LoRA fine-tuning jobs, follow them and fetch the adapters.",
    "VERSION": "1.0.0",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    # A change says itself which of its members may be left out.
    "COMPONENT_SPLIT_PATCH": False,
    # What is said of a view's own class is for those who read the code.
    "GET_LIB_DOC_EXCLUDES": "marketplace.api.operation_summaries.list_silent_views",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "marketplace.api.market.setting_schemas.add_setting_schemas",
        "marketplace.api.operation_summaries.add_summaries",
        "marketplace.api.error_answers.add_error_answers",
        "marketplace.api.described_operations.add_servers",
        "marketplace.api.described_operations.describe_parts",
    ],
    # Members of one name with several sets of values, and sets that several members have.
    "ENUM_NAME_OVERRIDES": {
        "BidStatusEnum": "marketplace.auction.models.BidStatus.values",
        "ExportFormEnum": "marketplace.exports.models.ExportForm.values",
        "JoinTokenStatusEnum": "marketplace.fleet.join_progress.TOKEN_STATUSES",
        "MemberRoleEnum": "marketplace.accounts.models.Role.values",
        "MessageFormEnum": "marketplace.webhooks.models.MessageForm.values",
        "TrainingPurposeEnum": ["fine-tune"],
    },
}

UNFOLD = {
    "SITE_TITLE": "Finetender back office",
    "SITE_HEADER": "Finetender",
    "SITE_URL": "/",
    "SHOW_VIEW_ON_SITE": False,
}

# --- Protection -------------------------------------------------------------------------------

DEFAULT_EXCEPTION_REPORTER = "marketplace.config.error_reports.RedactingReporter"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF, NONCE],
        "style-src": [SELF, NONCE],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
        "manifest-src": [SELF],
    }
}
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = 14 * 24 * 3600
CSRF_COOKIE_SAMESITE = "Lax"

PROMETHEUS_METRIC_NAMESPACE = "finetender"
PROMETHEUS_EXPORT_MIGRATIONS = False

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"},
        "json": {"()": "marketplace.config.logs.JsonFormatter"},
    },
    "filters": {"request": {"()": "marketplace.config.logs.RequestIdFilter"}},
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": environment.choice("LOG_FORMAT", "line", ("line", "json")),
            "filters": ["request"],
        }
    },
    # Every tick of the beat would be two lines; failures are logged above this level.
    "loggers": {
        name: {"level": "WARNING"}
        for name in ("celery.beat", "celery.worker.strategy", "celery.app.trace")
    },
    "root": {"handlers": ["console"], "level": environment.text("LOG_LEVEL", "INFO")},
}
