"""Who calls: an API key with scopes, or a person's session."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from marketplace.accounts.models import ApiKey, Organisation, User
from marketplace.accounts.selectors import organisation_current
from marketplace.accounts.services import api_key_authenticate
from marketplace.common import clock
from marketplace.common.errors import NotAllowed
from marketplace.common.kept import Kept

#: A person in several organisations names the one they act for.
ORGANISATION_HEADER = "Finetender-Organisation"


#: A key that is revoked may act for so long, in a process that has just let it in.
KEYS_KEPT_S = 2.0
_keys: Kept[ApiKey | None] = Kept(for_s=KEYS_KEPT_S)


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom a request acts."""

    user: User
    organisation: Organisation
    #: ``None`` for a person's session.
    key: ApiKey | None


class ApiKeyAuthentication(BaseAuthentication):
    """``Authorization: Bearer ft_…``."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey] | None:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if not scheme:
            return None
        if scheme.lower() != "bearer" or not secret.strip():
            raise exceptions.AuthenticationFailed(
                "The Authorization header must be 'Bearer ft_…' with one of your API keys."
            )
        now = clock.now()
        secret = secret.strip()
        key = _keys.get(
            sha256(secret.encode()).digest(),
            now=now,
            read=lambda: api_key_authenticate(secret=secret, now=now),
        )
        if key is None:
            raise exceptions.AuthenticationFailed(
                "This API key is unknown, revoked or expired. Make a new one in the settings."
            )
        return key.created_by, key

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="finetender"'


class HasScope(BasePermission):
    """A key needs the view's scope for the method; a session may do what its person may."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        scope = getattr(view, "scopes", {}).get(request.method)
        if scope is None:
            return True
        if not request.user or not request.user.is_authenticated:
            return False
        if isinstance(request.auth, ApiKey) and scope not in request.auth.scopes:
            raise NotAllowed(
                "missing_scope",
                f"This API key has no scope {scope}. Make a key that has it in the settings.",
                extra={"scope": scope},
            )
        return True


AUTHENTICATION = [ApiKeyAuthentication, SessionAuthentication]


def caller(request: Request) -> Caller:
    """The caller of a request that passed ``HasScope``."""
    if isinstance(request.auth, ApiKey):
        return Caller(user=request.user, organisation=request.auth.organisation, key=request.auth)
    organisation = organisation_current(
        user=request.user, organisation_id=request.headers.get(ORGANISATION_HEADER)
    )
    return Caller(user=request.user, organisation=organisation, key=None)
