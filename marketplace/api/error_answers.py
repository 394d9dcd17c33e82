"""What every operation may answer beside what its view names: errors, all of one shape."""

from __future__ import annotations

from typing import Any

_JSON, _PROBLEM = "application/json", "application/problem+json"
#: By the beginning of an address: the shape of an error, its media type, and what it is.
_ERRORS = {
    "/api/": ("Problem", _PROBLEM, "Any error, as RFC 9457 application/problem+json."),
    "/v1/": ("ErrorResponse", _JSON, "Any error, as OpenAI's clients read it."),
}


def add_error_answers(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Give each operation its errors, and each answer its one media type.

    A hook of drf-spectacular, which writes every answer in every media type of a view.
    """
    for path, methods in result["paths"].items():
        for beginning, (shape, media_type, description) in _ERRORS.items():
            if not path.startswith(beginning):
                continue
            content = {media_type: {"schema": {"$ref": f"#/components/schemas/{shape}"}}}
            for operation in methods.values():
                answers = operation["responses"]
                for status, answer in answers.items():
                    drop = _JSON if status >= "400" else _PROBLEM
                    if {_JSON, _PROBLEM} <= set(answer.get("content", {})):
                        del answer["content"][drop]
                answers["default"] = {"description": description, "content": content}
    return result
