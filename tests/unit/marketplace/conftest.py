"""Tests that pay by card have a gateway of their own, and those that want it a bucket.

On a busy machine a turn of a lane does as much as on a quiet one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import pytest

from marketplace.auction.lane import ended_jobs
from tests.object_bucket import create_bucket, serve_buckets, use_bucket
from tests.stand_in import ACCOUNTS_SECRET, REAL_KEY, WEBHOOK_SECRET, GatewayControl, run_stand_in


@pytest.fixture(scope="session", autouse=True)
def turns_are_whole() -> Iterator[None]:
    """A turn leaves no job that ended to the next because the machine is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ended_jobs, "RELEASE_FOR_S", inf)
        yield


@pytest.fixture(scope="session")
def stand_in() -> Iterator[GatewayControl]:
    with run_stand_in() as control:
        yield control


@pytest.fixture
def cards(stand_in: GatewayControl, settings: Any) -> GatewayControl:
    """A market that takes cards, at a gateway where nothing has happened yet."""
    stand_in.control("reset")
    settings.STRIPE_SECRET_KEY = stand_in.secret_key
    settings.STRIPE_PUBLISHABLE_KEY = stand_in.publishable_key
    settings.STRIPE_WEBHOOK_SECRET = WEBHOOK_SECRET
    settings.STRIPE_ACCOUNTS_WEBHOOK_SECRET = ACCOUNTS_SECRET
    settings.STRIPE_API_URL = stand_in.url
    return stand_in


@pytest.fixture
def any_gateway(request: pytest.FixtureRequest, settings: Any) -> None:
    """Stripe itself where a test key is given and the test tells the gateway nothing; else ours."""
    if REAL_KEY and "cards" not in request.fixturenames:
        settings.STRIPE_SECRET_KEY, settings.STRIPE_API_URL = REAL_KEY, ""
    else:
        request.getfixturevalue("cards")


@pytest.fixture(scope="session")
def bucket_server() -> Iterator[str]:
    with serve_buckets() as url:
        yield url


@pytest.fixture
def bucket(bucket_server: str, settings: Any) -> dict[str, Any]:
    """An empty bucket in which the market keeps its files."""
    options = create_bucket(bucket_server)
    use_bucket(settings, options)
    return options
