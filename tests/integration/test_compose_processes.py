"""From empty to the first sale with the compose file's own commands and environment file.

There is no Docker engine where this runs: each service is a process with what its container would
have as command and environment. PostgreSQL and Redis are ours, and a small proxy ends TLS in
Caddy's place, under an authority that the node and the buyer are given.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import shutil
import ssl
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from psycopg.rows import dict_row

from marketplace.embedded.demo.api_client import place_bid
from marketplace.embedded.servers import (
    Postgres,
    Program,
    find_free_port,
    prepare_postgres,
    prepare_redis,
    wait_for_postgres,
    wait_for_redis,
)
from marketplace.embedded.stack import Stack
from tests.object_bucket import create_bucket, list_objects, serve_buckets
from tests.unit.docker.test_docker import (
    EXAMPLE,
    ROOT,
    SERVICES,
    instructions,
    read_example,
)
from tests.waiting import until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2 * 3600)]

_NAMED = re.compile(r"^#?([A-Z0-9_]+)=", re.MULTILINE)
SECRET = "0123456789abcdef" * 4
ZONE = "tiny"
#: What the guide does on pages: an owner with a key, a provider that is approved, a join command.
PEOPLE = """
from marketplace.accounts.api_keys import create_api_key
from marketplace.accounts.models import User
from marketplace.accounts.services import create_organisation
from marketplace.common import clock
from marketplace.fleet.models import Provider, Zone
from marketplace.fleet.services import ListingTerms, approve_provider, create_join_token
now = clock.now()
owner = User.objects.create_user(email="owner@example.org", password=None)
buyer = create_organisation(name="Buyer", created_by=owner, now=now)
seller = create_organisation(name="Seller", created_by=owner, now=now)
provider, _ = Provider.objects.get_or_create(organisation=seller, defaults={"created_at": now})
operator = User.objects.get(email="operator@example.org")
provider = approve_provider(provider=provider, approved_by=operator, now=now)
scopes = ["bids:read", "bids:write", "datasets:read", "datasets:write", "jobs:read"]
_, key = create_api_key(organisation=buyer, created_by=owner, name="k", scopes=scopes, now=now)
_, token = create_join_token(
    zone=Zone.objects.get(), provider=provider, created_by=owner,
    terms=ListingTerms(1_000_000), now=now,
)
print("made", buyer.pk, key, token)
"""


def build_environment(overrides: dict[str, str], lines: dict[str, str]) -> dict[str, str]:
    """A container's of the market: the image's, the file's and the service's, as an engine would.

    ``overrides`` stand for what the containers' network and volumes are; ``lines`` are set in the
    file.
    """
    image_file = instructions(ROOT / "docker" / "web.Dockerfile")
    words = [word for kind, rest in image_file if kind == "ENV" for word in rest.split()]
    image = dict(word.split("=", 1) for word in words)
    assert set(lines) <= set(read_example(with_defaults=True)) | set(_NAMED.findall(EXAMPLE))
    given = read_example(with_defaults=False) | lines
    given |= {name: SECRET for name, value in given.items() if not value}
    given["PUBLIC_HOST"] = "localhost"
    service = {
        name: re.sub(r"\$\{([A-Z0-9_]+)[^}]*\}", lambda found: given[found[1]], value)
        for name, value in SERVICES["web"]["environment"].items()
    }
    assert set(overrides) <= {*service, "DATA_DIR"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": os.environ["HOME"]} | image | given | service | overrides


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate for ``localhost`` that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "key.pem", folder / "certificate.pem"
    files[0].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    files[1].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return files


def build_proxy(target: str) -> Any:
    """An ASGI application that passes requests on as the Caddyfile has it."""
    client = httpx.AsyncClient(base_url=target, timeout=None)
    dropped = {b"host", b"connection", b"transfer-encoding", b"x-forwarded-for"}

    async def read(receive: Any) -> AsyncIterator[bytes]:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            yield message.get("body", b"")
            if not message.get("more_body"):
                return

    async def pass_on(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = [pair for pair in scope["headers"] if pair[0] not in dropped]
        headers += [(b"host", b"localhost"), (b"x-forwarded-proto", b"https")]
        headers += [(b"x-forwarded-for", scope["client"][0].encode())]
        query = scope["query_string"].decode()
        path = scope["raw_path"].decode() + (f"?{query}" if query else "")
        request = client.build_request(
            scope["method"], path, headers=headers, content=read(receive)
        )
        answer = await client.send(request, stream=True)
        kept = [pair for pair in answer.headers.raw if pair[0].lower() not in dropped]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
        async for piece in answer.aiter_raw():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await answer.aclose()
        await send({"type": "http.response.body"})

    return pass_on


@contextmanager
def run_process(
    command: list[str], *, environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


STATUS = """
from marketplace.fleet.models import Node
print(*Node.objects.values_list("status", flat=True))
"""
LIMITS = """
from django.db import connection
names = "lock_timeout statement_timeout idle_in_transaction_session_timeout random_page_cost"
with connection.cursor() as cursor:
    print(*(cursor.execute(f"SHOW {name}").fetchone()[0] for name in names.split()))
"""
PROXY = """
import sys, uvicorn
from tests.integration.test_compose_processes import build_proxy
port, target, key, certificate = sys.argv[1:]
uvicorn.run(build_proxy(target), host="127.0.0.1", port=int(port), ssl_keyfile=key,
            ssl_certfile=certificate, log_level="warning", lifespan="off")
"""


@contextmanager
def use_disk() -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    yield {}, {}


@contextmanager
def use_object_bucket() -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Lines of the environment file, and the bucket that they name."""
    with serve_buckets() as address:
        bucket = create_bucket(address)
        yield (
            {
                "S3_BUCKET": bucket["bucket_name"],
                "S3_PREFIX": bucket["location"],
                "S3_ENDPOINT_URL": address,
                "S3_REGION": bucket["region_name"],
                "S3_ACCESS_KEY_ID": bucket["access_key"],
                "S3_SECRET_ACCESS_KEY": bucket["secret_key"],
                "S3_PATH_STYLE": "1",
            },
            bucket,
        )


POOLER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


def prepare_pooler(postgres: Postgres) -> tuple[Program, str]:
    """PgBouncer as docs/guides/operate.md has it, before ``postgres``; and its own address."""
    assert POOLER is not None
    port = find_free_port()
    # The server's own user reads these: the pooler does not run as root either.
    users, settings = postgres.socket_dir / "users", postgres.socket_dir / "pgbouncer.ini"
    users.write_text('"market" ""\n')
    settings.write_text(
        f"[databases]\nfinetender = host={postgres.socket_dir}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = trust\nauth_file = {users}\nadmin_users = market\n"
        "pool_mode = session\ndefault_pool_size = 100\nmax_client_conn = 300\n"
    )
    program = Program("pgbouncer", (POOLER, str(settings)), 20, postgres.program.user)
    return program, f"postgresql://market@127.0.0.1:{port}/"


def count_pooled(pooler: str) -> int:
    """Transactions of the market's database that came by the pooler."""
    with psycopg.connect(f"{pooler}pgbouncer", autocommit=True) as admin:
        rows = admin.cursor(row_factory=dict_row).execute("SHOW STATS").fetchall()
    return sum(row["total_xact_count"] for row in rows if row["database"] == "finetender")


@pytest.mark.parametrize(
    ("storage", "is_pooled"),
    [
        (use_disk, False),
        (use_object_bucket, False),
        pytest.param(
            use_disk, True, marks=pytest.mark.skipif(POOLER is None, reason="no pgbouncer here")
        ),
    ],
)
def test_the_compose_files_processes_sell_and_train_a_first_job(
    tmp_path: Path, storage: Callable[[], Any], is_pooled: bool
) -> None:
    key, certificate = make_certificate(tmp_path)
    web_port, tls_port = find_free_port(), find_free_port()
    url = f"https://localhost:{tls_port}"
    with ExitStack() as running:
        storage_lines, bucket = running.enter_context(storage())
        postgres = prepare_postgres(data_dir=tmp_path / "servers", durable=False)
        redis = prepare_redis(data_dir=tmp_path / "servers")
        programs = [postgres.program, redis.program]
        database, pooler = postgres.url, ""
        if is_pooled:
            program, pooler = prepare_pooler(postgres)
            programs.append(program)
            database, storage_lines = f"{pooler}finetender", {"DATABASE_POOLER": "1"}
        stack = running.enter_context(Stack(data_dir=tmp_path / "servers", programs=programs))
        stack.start("postgres", "redis")
        wait_for_postgres(postgres)
        wait_for_redis(redis)
        stack.start(*["pgbouncer"] * is_pooled)
        for volume in ("data", "keys"):
            (tmp_path / volume).mkdir(mode=0o700)
        environment = build_environment(
            {
                "DATABASE_URL": database,
                "REDIS_URL": redis.url,
                "DATA_DIR": str(tmp_path / "data"),
                "MARKET_KEY_DIR": str(tmp_path / "keys"),
                "PUBLIC_URL": url,
            },
            storage_lines,
        )

        def carry_out(command: list[str], **more: str) -> str:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment | more,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        carry_out(["python", "manage.py", "collectstatic", "--no-input"])
        carry_out(SERVICES["migrate"]["command"], DATABASE_OWNER_URL=postgres.owner_url)
        carry_out(SERVICES["warm"]["command"])

        def start(name: str, command: list[str], **more: str) -> subprocess.Popen[bytes]:
            log = tmp_path / f"{name}.log"
            return running.enter_context(
                run_process(command, environment=environment | more, log=log)
            )

        # As in the compose file, the web server has no folder of keys and can make none.
        web = ["python", "-m", "marketplace.config.web_server", "--port", str(web_port)]
        start("web", web, MARKET_KEY_DIR=os.devnull)
        for name in ("lane", "worker", "beat"):
            command = SERVICES[name]["command"]
            more = ["--schedule", str(tmp_path / "beat")] if name == "beat" else []
            start(name, [*command, *more])
        proxy = [sys.executable, "-c", PROXY, str(tls_port), f"http://127.0.0.1:{web_port}"]
        start("proxy", [*proxy, str(key), str(certificate)])

        # As docs/guides/operate.md, First steps.
        manage = ["python", "manage.py"]
        carry_out([*manage, "createsuperuser", "--no-input", "--email", "operator@example.org"])
        zone = [*manage, "zone_create", ZONE, "--base-model", "bundled:finetender-tiny"]
        carry_out([*zone, "--slot-s", "5", "--horizon-slots", "400"])
        said = carry_out([*manage, "shell", "-c", PEOPLE])
        _, buyer, api_key, join_token = re.search(r"(made) (\S+) (\S+) (\S+)", said).groups()  # type: ignore[union-attr]
        grant = [*manage, "wallet_grant", buyer, "1000", "--operator", "operator@example.org"]
        carry_out([*grant, "--reference", "first"])

        trusted = ssl.create_default_context(cafile=certificate)
        headers = {"Authorization": f"Bearer {api_key}"}
        with httpx.Client(base_url=url, verify=trusted, headers=headers) as market:

            def answers() -> bool:
                try:
                    return market.get("/api/zones").status_code == 200
                except httpx.TransportError:
                    return False

            until(answers, what="the market answers over HTTPS", within_s=1800, every_s=0.5)
            page = market.get("/", headers={"Authorization": ""})
            assert page.status_code == 200
            assert "max-age=" in page.headers["strict-transport-security"]
            start(
                "node",
                [
                    *("python", "-m", "workers", "join", "--url", url, "--run", "--quick"),
                    *("--device", "cpu", "--name", "first", "--state-dir", str(tmp_path / "state")),
                ],
                SSL_CERT_FILE=str(certificate),
                FINETENDER_JOIN_TOKEN=join_token,
            )

            def is_on_sale() -> bool:
                return "online" in carry_out([*manage, "shell", "-c", STATUS])

            until(is_on_sale, what="the node is on sale", within_s=1800, every_s=2)
            bid = place_bid(
                market, ZONE, name="first", training={"epochs": 1}, within_s=1500, say=print
            )

            def get_job() -> dict[str, Any]:
                return market.get(f"/api/jobs/{bid['job_id']}").json()

            until(
                lambda: get_job()["status"] in ("succeeded", "failed"),
                what="the first job ends",
                within_s=1800,
                every_s=1,
            )
            assert get_job()["status"] == "succeeded"
            adapter = market.get(f"/api/jobs/{bid['job_id']}/adapter", follow_redirects=True)
            (tmp_path / "adapter.zip").write_bytes(adapter.content)
            with zipfile.ZipFile(tmp_path / "adapter.zip") as archive:
                assert "adapter_model.safetensors" in archive.namelist()
        if is_pooled:
            assert count_pooled(pooler) > 1000
            # What a pooler does not pass on, each session sets by itself.
            limits = carry_out([*manage, "shell", "-c", LIMITS], DATABASE_POOL_MAX="2")
            assert "15s 30s 2min 1.1" in limits
        if bucket:
            names = [Path(name).relative_to("market") for name in list_objects(bucket)]
            assert {name.parts[0] for name in names} == {"datasets", "jobs"}
            assert [name.suffix for name in names if name.parts[2] == "adapters"] == [".zip"]
            assert not [path for path in (tmp_path / "data").rglob("*.zip") if path.is_file()]
        assert "The books balance." in carry_out([*manage, "ledger_check", "--whole"])
        assert "verified" in carry_out([*manage, "auction_verify"])
