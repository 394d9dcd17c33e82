"""The images and the compose file name only commands and paths that exist.

No Docker engine is needed: the files are parsed as an engine would read them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from celery.bin.celery import celery as celery_cli
from django.core.management import get_commands
from django.urls import resolve

ROOT = Path(__file__).parents[3]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def _load_digests() -> ModuleType:
    """The program that pins images; it stands beside them, outside of any package."""
    spec = importlib.util.spec_from_file_location("digests", ROOT / "docker" / "digests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


digests = _load_digests()


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, arguments) with continued lines joined and comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.split("\n"))]


def commands_of_images() -> list[list[str]]:
    return [
        json.loads(rest)
        for path in DOCKERFILES
        for word, rest in instructions(path)
        if word == "CMD" and "python" in rest
    ]


def commands_of_services() -> list[list[str]]:
    return [row["command"] for row in SERVICES.values() if row.get("command", [""])[0] == "python"]


def test_there_are_two_images_and_every_service_is_built_or_named() -> None:
    assert [path.name for path in DOCKERFILES] == ["web.Dockerfile", "worker.Dockerfile"]
    for name, row in SERVICES.items():
        if "build" not in row:
            assert "image" in row, name
        else:
            # One image for all of them, made once.
            assert row.get("image") == (None if name == "node" else "finetender-web"), name
            context = (ROOT / "docker" / row["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / row["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_every_copied_path_exists(path: Path) -> None:
    stages = {rest.split()[-1] for word, rest in instructions(path) if word == "FROM"}
    copied = 0
    for word, rest in instructions(path):
        if word != "COPY":
            continue
        parts = shlex.split(rest)
        if parts[0].startswith("--from="):
            assert parts[0].removeprefix("--from=") in stages
            continue
        for source in parts[:-1]:
            assert (ROOT / source).exists(), f"{path.name} copies {source}"
            copied += 1
    assert copied > 0


def test_every_image_of_a_registry_is_pinned_to_its_content() -> None:
    files = [*DOCKERFILES, ROOT / "docker" / "compose.yml"]
    found = [image for path in files for image in digests.IMAGE.finditer(path.read_text())]
    assert len(found) == 8
    assert [image["name"] for image in found if image["digest"] is None] == []


def test_pins_follow_their_tags_and_nothing_else_changes() -> None:
    old, new = (f"sha256:{digit * 64}" for digit in "01")
    text = "# Of node:22.\nFROM {} AS node\nFROM node\n    image: {}\n    build: {{context: ..}}\n"
    asked = []
    pinned = digests.pin_images(
        text.format(f"a/b:1-slim@{old}", "redis:7"),
        find_digest=lambda name: asked.append(name) or new,
    )
    assert pinned == text.format(f"a/b:1-slim@{new}", f"redis:7@{new}")
    assert asked == ["a/b:1-slim", "redis:7"]


def test_images_never_copy_the_market_to_a_node() -> None:
    worker = (ROOT / "docker" / "worker.Dockerfile").read_text()
    assert "marketplace" not in worker
    assert "scheduler" not in worker


@pytest.mark.parametrize("command", commands_of_images() + commands_of_services(), ids=" ".join)
def test_every_python_command_exists(command: list[str]) -> None:
    assert command[0] == "python"
    if command[1] == "manage.py":
        assert (ROOT / "manage.py").is_file()
        assert command[2] in get_commands()
        return
    assert command[1] == "-m"
    assert importlib.util.find_spec(command[2]) is not None
    if command[2] == "celery":
        _celery_accepts(command[3:])
    if command[2] == "uvicorn":
        module, _, name = command[3].partition(":")
        assert importlib.util.find_spec(module) is not None
        assert f"\n{name} = " in (ROOT / Path(*module.split("."))).with_suffix(".py").read_text()


def _celery_accepts(arguments: list[str]) -> None:
    """Celery's own parser takes the options; nothing is run."""
    assert arguments[:2] == ["--app", "marketplace.config.celery"]
    name, *options = arguments[2:]
    command = celery_cli.commands[name]
    command.make_parser(command.context_class(command)).parse_args(args=options)


def test_static_files_can_be_collected_with_what_the_image_sets_for_it() -> None:
    run = next(rest for _, rest in instructions(DOCKERFILES[0]) if "collectstatic" in rest)
    values = dict(re.findall(r"\b([A-Z0-9_]+)=(\S+)", run))
    done = subprocess.run(
        [sys.executable, "manage.py", "collectstatic", "--no-input", "--dry-run", "-v", "0"],
        env={"PATH": os.environ["PATH"], "DJANGO_SETTINGS_MODULE": _image_settings()} | values,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _image_settings() -> str:
    text = DOCKERFILES[0].read_text()
    return re.findall(r"DJANGO_SETTINGS_MODULE=(\S+)", text)[0]


def test_the_node_image_starts_a_command_the_workers_have() -> None:
    words = dict(instructions(ROOT / "docker" / "worker.Dockerfile"))
    assert json.loads(words["ENTRYPOINT"]) == ["python", "-m", "workers"]
    subcommand = json.loads(words["CMD"])[0]
    assert f'"{subcommand}"' in (ROOT / "workers" / "__main__.py").read_text()


def test_services_depend_on_services_and_mount_volumes_that_are_declared() -> None:
    for name, row in SERVICES.items():
        for other, condition in row.get("depends_on", {}).items():
            assert other in SERVICES, name
            if condition["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other]
        for mount in row.get("volumes", []):
            source, separator, _ = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", mount).partition(":")
            if source.startswith("./"):
                assert (ROOT / "docker" / source).is_file(), name
            else:
                assert not separator or source in COMPOSE["volumes"], name
        for network in row["networks"]:
            assert network in COMPOSE["networks"], name


def test_every_container_may_do_what_its_work_needs_and_no_more() -> None:
    for name, row in SERVICES.items():
        assert row["read_only"] is True, name
        assert row["cap_drop"] == ["ALL"], name
        assert row["security_opt"] == ["no-new-privileges:true"], name
        # What runs wild takes neither the machine's memory nor its disk.
        assert "mem_limit" in row, name
        assert row["pids_limit"] == 2000, name
        assert row["logging"]["options"] == {"max-size": "20m", "max-file": "5"}, name
    # Two images start as root, take over their volume and become their own user; one has low ports.
    added = {name: row["cap_add"] for name, row in SERVICES.items() if "cap_add" in row}
    assert set(added) == {"postgres", "redis", "proxy"}
    assert added["proxy"] == ["NET_BIND_SERVICE"]


def test_postgres_and_redis_are_reached_from_inside_alone() -> None:
    # Only through the proxy that ends TLS: nobody else may speak as one.
    assert [name for name, row in SERVICES.items() if "ports" in row] == ["proxy"]
    assert SERVICES["proxy"]["ports"] == ["80:80", "443:443", "443:443/udp"]
    assert SERVICES["proxy"]["networks"] == ["outside"]
    assert "reverse_proxy web:8000" in (ROOT / "docker" / "Caddyfile").read_text()
    for name in ("postgres", "redis"):
        for network in SERVICES[name]["networks"]:
            assert COMPOSE["networks"][network] == {"internal": True}
    # A node meets Redis, where it has a user of its own, and never PostgreSQL.
    assert not set(SERVICES["node"]["networks"]) & set(SERVICES["postgres"]["networks"])


def test_whatever_runs_says_whether_it_works_and_a_backup_has_the_key() -> None:
    asked = {
        name: row["healthcheck"]["test"] for name, row in SERVICES.items() if "healthcheck" in row
    }
    assert set(SERVICES) - set(asked) == {"migrate", "warm", "backup"}, "these end"
    for part in ("lane", "worker", "beat"):
        assert asked[part] == ["CMD", "python", "docker/ask_health.py", part]
        assert resolve(f"/healthz/{part}").kwargs == {"part": part}
    with_keys = {name for name, row in SERVICES.items() if "keys:/keys" in row.get("volumes", [])}
    assert with_keys == {"lane", "worker", "backup"}


def test_redis_has_a_password_a_limit_and_forgets_nothing() -> None:
    command = SERVICES["redis"]["command"][-1]
    for line in ("requirepass", "maxmemory 512mb", "maxmemory-policy noeviction"):
        assert line in command
    address = SERVICES["web"]["environment"]["REDIS_URL"]
    assert address.startswith("redis://:${REDIS_PASSWORD:?")


@pytest.mark.parametrize("name", ["lane", "web"])
def test_no_bid_waits_for_a_compiler(name: str) -> None:
    assert SERVICES[name]["depends_on"]["warm"] == {"condition": "service_completed_successfully"}


def test_no_secret_has_a_value_in_the_file() -> None:
    text = (ROOT / "docker" / "compose.yml").read_text()
    secret = ("SECRET_KEY", "POSTGRES_PASSWORD", "MARKET_DATABASE_PASSWORD", "REDIS_PASSWORD")
    for variable in (*secret, "METRICS_TOKEN"):
        assert re.search(rf"\${{{variable}:\?", text), f"{variable} must be demanded"
        assert not re.search(rf"{variable}: [^$\n\"]", text)


EXAMPLE = (ROOT / "docker" / "market.env.example").read_text()
#: Set by the compose file itself, from the lines of the first block.
COMPUTED = {
    "DATABASE_URL",
    "DATABASE_OWNER_URL",
    "REDIS_URL",
    "PUBLIC_URL",
    "ALLOWED_HOSTS",
    "MARKET_KEY_DIR",
}
#: Of the image, of development and of the demo.
ELSEWHERE = {"DATA_DIR", "NODE_INSTALL_DIR", "DEBUG", "DEMO_MONEY_USD", "STRIPE_API_URL"}


def read_example(*, with_defaults: bool) -> dict[str, str]:
    """The example's lines; with defaults, those behind a # as well that have a value."""
    lines = EXAMPLE.splitlines()
    if with_defaults:
        lines = [re.sub(r"^#([A-Z0-9_]+=.)", r"\1", line) for line in lines]
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Z0-9_]+=", line))


def test_the_environment_file_names_every_setting_there_is() -> None:
    asked: set[str] = set()
    for path in sorted((ROOT / "marketplace" / "config").rglob("*.py")):
        kinds = "text|flag|choice|number|words|rates|folder|loopback_url|public_key"
        read = rf'environment\.(?:{kinds})\(\s*f?"([A-Z0-9_]+)"'
        asked |= set(re.findall(read, path.read_text()))
    named = set(re.findall(r"^#?([A-Z0-9_]+)=", EXAMPLE, flags=re.MULTILINE))
    assert len(asked) > 40
    assert asked - named - COMPUTED - ELSEWHERE == set()
    market = SERVICES["web"]
    assert market["env_file"] == ["market.env"]
    processes = {*COMPUTED, "SECRET_KEY", "METRICS_TOKEN", "POSTGRES_PASSWORD"}
    assert set(market["environment"]) == processes - {"DATABASE_OWNER_URL"}
    # Only what migrates and what puts a backup back can be the tables' owner.
    assert market["environment"]["POSTGRES_PASSWORD"] == ""
    owners = {
        n for n, row in SERVICES.items() if "DATABASE_OWNER_URL" in row.get("environment", {})
    }
    assert owners == {"migrate", "backup"}
    # What a container computes must not be overruled by an old line in the file.
    assert named & COMPUTED == set()


@pytest.mark.parametrize("with_defaults", [False, True])
def test_the_market_starts_with_the_settings_of_the_environment_file(with_defaults: bool) -> None:
    secret = "0123456789abcdef" * 4
    given = read_example(with_defaults=with_defaults)
    given |= {name: secret for name, value in given.items() if not value}
    known = SERVICES["web"]["environment"]
    filled = {
        name: re.sub(r"\$\{([A-Z0-9_]+)[^}]*\}", lambda found: given[found[1]], value)
        for name, value in known.items()
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        env={"PATH": os.environ["PATH"], "DJANGO_SETTINGS_MODULE": _image_settings()}
        | given
        | filled
        | {"MARKET_KEY_DIR": os.devnull},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert filled["PUBLIC_URL"] == "https://market.example.org"
