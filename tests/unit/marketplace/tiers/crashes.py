"""Processes that end in the middle of their work."""

from __future__ import annotations

from collections.abc import Callable

import pytest


class Killed(BaseException):
    """What no ``except Exception`` may catch, as no process catches being killed."""


def dies_in(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, after: bool
) -> Callable[[], None]:
    """Make a function end its process, before or after its work; returns how to mend it."""
    whole = getattr(owner, name)

    def dying(*terms, **more):
        if after:
            whole(*terms, **more)
        raise Killed

    monkeypatch.setattr(owner, name, dying)
    return lambda: monkeypatch.setattr(owner, name, whole)
