"""Who calls: an API key with scopes, or a person's session."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from marketplace.accounts.api_keys import authenticate_api_keys
from marketplace.accounts.models import ApiKey, Organisation, User
from marketplace.accounts.policy import RIGHT_BY_SCOPE, check_right, check_scope
from marketplace.accounts.recent_sign_in import check_recent_sign_in
from marketplace.accounts.selectors import find_session_user, get_current_organisation
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.common.ttl_cache import TtlCache

#: A person in several organisations names the one they act for.
ORGANISATION_HEADER = "Finetender-Organisation"
#: What a request without a good key is asked for.
CHALLENGE = 'Bearer realm="finetender"'
#: A revoked key may act for this long in a process that checked it just before.
KEYS_KEPT_S = 2.0
_keys: TtlCache[ApiKey | None] = TtlCache(for_s=KEYS_KEPT_S)


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom a request acts."""

    user: User
    organisation: Organisation
    #: ``None`` for a person's session.
    key: ApiKey | None

    @property
    def key_id(self) -> str | None:
        return None if self.key is None else self.key.pk


@dataclass(frozen=True, slots=True)
class Standing:
    """What holds a stream open: it ends where a new request like it would be refused."""

    caller: Caller
    scope: str
    #: Of the API key; ``None`` for a person's session.
    secret: str | None
    session_key: str | None

    def check(self, *, now: datetime) -> None:
        """Refuse whose key, session, account, membership or role has ended or is frozen.

        Raises
        ------
        UserError
            ``invalid_api_key`` (401), or as ``HasScope`` refuses.
        """
        if self.secret is not None:
            key = find_keys([self.secret], now=now)[self.secret]
            if key is None:
                raise UserError("invalid_api_key", "The key has ended.", status=401)
            check_scope(key, self.scope)
            return
        user = find_session_user(self.session_key)
        if user is None:
            raise UserError("not_signed_in", "The session has ended.", status=401)
        right = RIGHT_BY_SCOPE[self.scope]
        check_right(organisation=self.caller.organisation, user=user, right=right)


def find_standing(request: Request, scope: str) -> Standing:
    """What a request that becomes a stream stands on."""
    caller = get_caller(request)
    if caller.key is not None:
        secret = read_secret(request.headers.get("Authorization", ""))
        return Standing(caller, scope, secret, None)
    return Standing(caller, scope, None, request._request.session.session_key)


class ApiKeyAuthentication(BaseAuthentication):
    """``Authorization: Bearer ft_…``."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey] | None:
        secret = read_secret(request.headers.get("Authorization", ""))
        if secret is None:
            return None
        key = require_key(find_keys([secret], now=clock.now())[secret])
        return key.created_by, key

    def authenticate_header(self, request: Request) -> str:
        return CHALLENGE


def read_keys_ahead(requests: Iterable[Request]) -> None:
    """Read the keys of several requests together: each then finds its own in memory."""
    secrets: set[str] = set()
    for request in requests:
        with suppress(exceptions.AuthenticationFailed):
            secrets.add(read_secret(request.headers.get("Authorization", "")) or "")
    find_keys(secrets - {""}, now=clock.now())


def read_secret(authorization: str) -> str | None:
    """The secret of an ``Authorization`` header; ``None`` without a header.

    Raises
    ------
    rest_framework.exceptions.AuthenticationFailed
        It holds something else.
    """
    scheme, _, secret = authorization.partition(" ")
    if not scheme:
        return None
    if scheme.lower() != "bearer" or not secret.strip():
        raise exceptions.AuthenticationFailed(
            "The Authorization header must be 'Bearer ft_…' with one of your API keys."
        )
    return secret.strip()


def find_keys(secrets: Iterable[str], *, now: datetime) -> dict[str, ApiKey | None]:
    """The keys behind secrets, as they stood at most ``KEYS_KEPT_S`` ago."""
    # Cached under their digests: the secrets themselves stay with their callers.
    digests = {sha256(secret.encode()).digest(): secret for secret in secrets}

    def read(missing: list[bytes]) -> dict[bytes, ApiKey | None]:
        found = authenticate_api_keys(given=[digests[digest] for digest in missing], now=now)
        return {digest: found[digests[digest]] for digest in missing}

    kept = _keys.get_many(digests, now=now, read=read)
    return {secret: kept[digest] for digest, secret in digests.items()}


def require_key(key: ApiKey | None) -> ApiKey:
    """The key, if there is one.

    Raises
    ------
    rest_framework.exceptions.AuthenticationFailed
    """
    if key is None:
        raise exceptions.AuthenticationFailed(
            "This API key is unknown, revoked or expired. Make a new one in the settings."
        )
    return key


class HasScope(BasePermission):
    """A key needs the view's scope for the method; a person needs a role that carries its right."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        # What answers GET answers HEAD as well.
        method = "GET" if request.method == "HEAD" else request.method
        scope = getattr(view, "scopes", {}).get(method)
        if scope is None:
            return True
        if not request.user or not request.user.is_authenticated:
            return False
        caller = get_caller(request)
        if caller.key is None:
            check_right(
                organisation=caller.organisation, user=caller.user, right=RIGHT_BY_SCOPE[scope]
            )
            if request.method not in SAFE_METHODS or scope.endswith(":write"):
                check_recent_sign_in(request._request, scope)
        else:
            check_scope(caller.key, scope)
        return True


AUTHENTICATION = [ApiKeyAuthentication, SessionAuthentication]


def get_caller(request: Request) -> Caller:
    """Tell who calls, by the key or the session; a request is asked once."""
    found = getattr(request, "_caller", None)
    if found is None:
        found = request._caller = _find_caller(request)  # type: ignore[attr-defined]
    return found


def _find_caller(request: Request) -> Caller:
    if isinstance(request.auth, ApiKey):
        return Caller(user=request.user, organisation=request.auth.organisation, key=request.auth)
    organisation = get_current_organisation(
        user=request.user, organisation_id=request.headers.get(ORGANISATION_HEADER)
    )
    return Caller(user=request.user, organisation=organisation, key=None)
