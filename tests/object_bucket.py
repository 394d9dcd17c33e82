"""A bucket on a server of the tests' own that speaks S3."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3


@contextmanager
def serve_buckets() -> Iterator[str]:
    """The server's address."""
    # It takes a second, and only some tests want it.
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def create_bucket(url: str) -> dict[str, Any]:
    """Options of ``ObjectStorage`` for a new and empty bucket."""
    options = {
        "bucket_name": f"files-{secrets.token_hex(4)}",
        "location": "market",
        "endpoint_url": url,
        "region_name": "us-east-1",
        "access_key": "tests",
        "secret_key": "tests",
        "is_path_style": True,
    }
    connect(options).create_bucket(Bucket=options["bucket_name"])
    return options


def connect(options: dict[str, Any]) -> Any:
    """A client of the server, beside the market's own."""
    return boto3.client(
        "s3",
        endpoint_url=options["endpoint_url"],
        region_name=options["region_name"],
        aws_access_key_id=options["access_key"],
        aws_secret_access_key=options["secret_key"],
    )


def list_objects(options: dict[str, Any]) -> list[str]:
    """The names in the bucket, sorted."""
    found = connect(options).list_objects_v2(Bucket=options["bucket_name"])
    return sorted(one["Key"] for one in found.get("Contents", ()))


def use_bucket(settings: Any, options: dict[str, Any]) -> None:
    """Have the market keep its files there until the test is over."""
    backend = "marketplace.common.object_storage.ObjectStorage"
    settings.STORAGES = settings.STORAGES | {"default": {"BACKEND": backend, "OPTIONS": options}}
