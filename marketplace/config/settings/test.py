"""The test suite: real PostgreSQL and Redis, fast password hashing, mail kept in memory."""

import os
import tempfile
from pathlib import Path

from marketplace.config.settings.base import *  # noqa: F403
from marketplace.config.settings.base import DATABASES, MIDDLEWARE

SECRET_KEY = "finetender-insecure-test-key"  # noqa: S105
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
MARKET_KEY_DIR = Path(tempfile.gettempdir()) / "finetender-tests" / "keys"
MEDIA_ROOT = Path(tempfile.gettempdir()) / "finetender-tests" / "media"
# Tests open connections from threads of their own; a pool would outlive the test database.
DATABASES["default"]["OPTIONS"].pop("pool", None)
DATABASES["default"]["CONN_MAX_AGE"] = 0
# A database that is migrated already, see ``tests/migrated_cluster.py``.
if _TEMPLATE := os.environ.get("TEST_DATABASE_TEMPLATE"):
    DATABASES["default"]["TEST"] = {"TEMPLATE": _TEMPLATE, "MIGRATE": False}
PROVIDERS_NEED_APPROVAL = False
OPERATORS_NEED_MFA = False
# Organisations of tests are as new as the test itself; those of their limits turn them on.
NEW_ACCOUNT_DAYS = 0
# Tests sign people in without a password; those of recent sign-ins ask for one.
ACCOUNT_REAUTHENTICATION_REQUIRED = False
# It would look through all static files for each test's first request, and answer in a thread.
MIDDLEWARE = [name for name in MIDDLEWARE if not name.startswith("servestatic.")]
# Most tests end jobs by messages alone; those of checks turn them on.
SPOT_CHECK_SHARE = 0.0
# Payouts in tests are whole; those of reserves turn it on.
PAYOUT_RESERVE_PERCENT = 0
