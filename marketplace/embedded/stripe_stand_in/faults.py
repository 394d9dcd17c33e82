"""What the stand-in refuses, in Stripe's shape."""

from __future__ import annotations

from typing import Any


class ErrorAnswer(Exception):
    """An answer that is an error."""

    def __init__(
        self, status: int, kind: str, message: str, *, code: str = "", **more: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"type": kind, "message": message, **more}}
        if code:
            self.body["error"]["code"] = code


def refuse_request(code: str, message: str, *, status: int = 400, **more: Any) -> ErrorAnswer:
    return ErrorAnswer(status, "invalid_request_error", message, code=code, **more)


def refuse_missing(what: str, name: str) -> ErrorAnswer:
    return refuse_request("resource_missing", f"No such {what}: '{name}'", status=404, param="id")


def refuse_card(
    code: str, message: str, intent: dict[str, Any], decline_code: str = ""
) -> ErrorAnswer:
    more: dict[str, Any] = {"payment_intent": intent}
    if decline_code:
        more["decline_code"] = decline_code
    return ErrorAnswer(402, "card_error", message, code=code, **more)
