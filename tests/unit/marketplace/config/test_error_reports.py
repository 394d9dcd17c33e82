"""Error pages and reports hold no secret, under whatever name it stands."""

from __future__ import annotations

import sys
from urllib.parse import quote

import pytest
from django.conf import settings as django_settings
from django.test import RequestFactory
from django.views.debug import get_exception_reporter_class

PASSWORD = "s3cret & <more>/1"


@pytest.fixture
def secrets(settings) -> list[str]:
    url = f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:6379/0"
    settings.DEBUG = True
    settings.REDIS_URL = settings.CELERY_BROKER_URL = url
    settings.CHANNEL_LAYERS = {"default": {"CONFIG": {"hosts": [url]}}}
    settings.METRICS_TOKEN = "the token of the metrics"
    return [PASSWORD, quote(PASSWORD, safe=""), "the token of the metrics", settings.SECRET_KEY]


def report() -> tuple[str, str]:
    innocent = [django_settings.REDIS_URL, PASSWORD, django_settings.SECRET_KEY]
    request = RequestFactory().get("/", {"q": innocent[0]})
    reporter = get_exception_reporter_class(request)
    try:
        raise RuntimeError(f"cannot connect to {innocent[0]}")
    except RuntimeError:
        made = reporter(request, *sys.exc_info())
    return made.get_traceback_html(), made.get_traceback_text()


def test_no_secret_of_the_settings_stands_in_a_report(secrets: list[str]) -> None:
    for text in report():
        assert "cannot connect to redis://:********@127.0.0.1:6379/0" in text
        for secret in secrets:
            assert secret not in text


def test_a_database_password_is_hidden_by_its_value(settings) -> None:
    settings.DATABASES["default"]["PASSWORD"] = "of the database"
    try:
        leaked = "of the database"
        raise RuntimeError(leaked)
    except RuntimeError:
        made = get_exception_reporter_class(None)(None, *sys.exc_info())
        text = made.get_traceback_text()
    finally:
        settings.DATABASES["default"]["PASSWORD"] = ""
    assert "of the database" not in text
