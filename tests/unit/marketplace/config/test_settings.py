"""What may not start, and what the settings read out of the environment."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command

from marketplace.config.settings import environment

ROOT = Path(__file__).parents[4]
SOUND = {
    "DJANGO_SETTINGS_MODULE": "marketplace.config.settings.production",
    "SECRET_KEY": "0123456789abcdefghijklmnopqrstuvwxyz-_" * 2,
    "DATABASE_URL": "postgresql://db.internal/finetender",
    "REDIS_URL": "redis://:password@cache.internal:6379/0",
    "PUBLIC_URL": "https://market.example",
    "ALLOWED_HOSTS": "market.example",
    "METRICS_TOKEN": "m" * 32,
}
WHOLE_DOMAIN = {"SECURE_HSTS_INCLUDE_SUBDOMAINS": "1", "SECURE_HSTS_PRELOAD": "1"}


def load(kind: str = "production", **changed: str | None) -> ModuleType:
    """The settings as a fresh process reads them, with nothing else in its environment."""
    package = "marketplace.config.settings"
    given = {name: value for name, value in (SOUND | changed).items() if value is not None}
    loaded = {name: sys.modules[name] for name in sys.modules if name.startswith(f"{package}.")}
    with mock.patch.dict(os.environ, given, clear=True):
        for name in loaded:
            del sys.modules[name]
        try:
            return importlib.import_module(f"{package}.{kind}")
        finally:
            sys.modules.update(loaded)


def started(script: str, **changed: str | None) -> subprocess.CompletedProcess[str]:
    """A fresh process with nothing of ours in its environment but what is named."""
    ours = SOUND | {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)} | changed
    return subprocess.run(
        [sys.executable, "-c", f"import django; django.setup(); {script}"],
        env={name: value for name, value in ours.items() if value is not None},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"SECRET_KEY": None}, "SECRET_KEY"),
        ({"SECRET_KEY": "short"}, "SECRET_KEY"),
        ({"SECRET_KEY": "insecure" + "k" * 60}, "SECRET_KEY"),
        ({"DATABASE_URL": None}, "DATABASE_URL"),
        ({"DATABASE_URL": "sqlite:///x.db"}, "PostgreSQL"),
        ({"REDIS_URL": ""}, "REDIS_URL"),
        ({"REDIS_URL": "redis://cache.internal:6379/0"}, "must hold a password"),
        ({"PUBLIC_URL": None}, "PUBLIC_URL"),
        ({"PUBLIC_URL": "http://market.example"}, "https"),
        ({"ALLOWED_HOSTS": None}, "ALLOWED_HOSTS"),
        ({"ALLOWED_HOSTS": "*"}, "ALLOWED_HOSTS"),
        ({"METRICS_TOKEN": None}, "METRICS_TOKEN"),
        ({"DEBUG": "1"}, "DEBUG"),
        ({"DEBUG": "perhaps"}, "DEBUG"),
        ({"DATABASE_POOL_MAX": "many"}, "DATABASE_POOL_MAX"),
    ],
)
def test_production_does_not_start_with_a_setting_missing_or_unsafe(changed, says: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=says):
        load(**changed)


def test_production_with_everything_set_passes_djangos_own_deployment_check() -> None:
    done = started(
        "from django.core.management import call_command;"
        " call_command('check', deploy=True, fail_level='WARNING')"
    )
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_production_cookies_travel_over_tls_only_and_browsers_are_told_so() -> None:
    found = load()
    assert found.SESSION_COOKIE_SECURE is found.CSRF_COOKIE_SECURE is True
    assert found.SECURE_SSL_REDIRECT is True
    assert found.SECURE_HSTS_SECONDS == 31536000
    assert found.DEBUG is False
    assert found.ACCOUNT_EMAIL_VERIFICATION == "mandatory"


@pytest.mark.parametrize(("chosen", "is_told"), [({}, False), (WHOLE_DOMAIN, True)])
def test_browsers_are_told_of_the_whole_domain_only_where_the_operator_chose_so(
    chosen, is_told
) -> None:
    found = load(**chosen)
    assert found.SECURE_HSTS_INCLUDE_SUBDOMAINS is found.SECURE_HSTS_PRELOAD is is_told


@pytest.mark.parametrize(("kind", "need"), [("production", True), ("dev", False)])
def test_operators_need_a_second_factor_unless_the_market_is_one_persons_own(kind, need) -> None:
    found = load(kind)
    assert found.OPERATORS_NEED_MFA is need
    assert found.DEBUG is False


def test_the_web_server_shares_connections_and_other_processes_keep_their_own() -> None:
    show = "from django.conf import settings as s; print(s.DATABASES['default']['OPTIONS'])"
    others = load().DATABASES["default"]["OPTIONS"]
    assert "pool" not in others
    assert "statement_timeout" not in others["options"]
    web = started(f"import marketplace.config.asgi; {show}", DATABASE_POOL_MAX="7")
    assert "'max_size': 7" in web.stdout
    assert "-c statement_timeout=30s" in web.stdout


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.parametrize(
    ("redis_url", "broker"),
    [
        ("redis://:pw@127.0.0.1:6379/3", "redis://:pw@127.0.0.1:6379/3"),
        ("unix:///run/redis.sock?db=2", "redis+socket:///run/redis.sock?virtual_host=2"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
    ],
)
def test_celery_finds_the_same_redis(redis_url: str, broker: str) -> None:
    assert environment.celery_broker(redis_url) == broker


def test_words_flags_numbers_and_folders_are_read(monkeypatch, tmp_path: Path) -> None:
    for name, value in {"A": "x, y ,,", "B": "ON", "C": "0", "D": "1.5", "E": ""}.items():
        monkeypatch.setenv(name, value)
    assert environment.words("A") == ["x", "y"]
    assert environment.flag("B", default=False) is True
    assert environment.flag("C", default=True) is False
    assert environment.flag("MISSING", default=True) is True
    assert environment.number("D", 9) == 1.5
    assert environment.number("MISSING", 9) == 9
    assert environment.folder("E", tmp_path) == tmp_path


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "x", ""])
def test_a_number_out_of_range_names_the_variable(monkeypatch, value: str) -> None:
    monkeypatch.setenv("D", value)
    with pytest.raises(ImproperlyConfigured, match="D is"):
        environment.number("D", 9)


@pytest.mark.parametrize(
    ("address", "key", "says"),
    [
        ("https://witness.example", "ab" * 31, "64 hex digits"),
        ("https://witness.example", "zz" * 32, "64 hex digits"),
        ("https://witness.example", "", "set both or none"),
        ("", "ab" * 32, "set both or none"),
    ],
)
def test_a_day_is_witnessed_by_an_address_and_a_key_that_can_be_one(address, key, says):
    """The lane writes the key to the log, which refuses any other text: no bid would be decided."""
    with pytest.raises(ImproperlyConfigured, match=says):
        load(AUCTION_DAY_WITNESS=address, AUCTION_DAY_WITNESS_KEY=key)


def test_a_witnesss_key_is_read_in_capitals_too():
    read = load(AUCTION_DAY_WITNESS="https://witness.example", AUCTION_DAY_WITNESS_KEY="AB" * 32)
    assert read.AUCTION_DAY_WITNESS_KEY == "ab" * 32
