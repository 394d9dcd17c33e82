"""What the frame around every page shows."""

from typing import Any

from django.http import HttpRequest

THEMES = ("auto", "light", "dark")


def build_frame(request: HttpRequest) -> dict[str, Any]:
    theme = request.COOKIES.get("theme", "auto")
    return {"theme": theme if theme in THEMES else "auto"}
