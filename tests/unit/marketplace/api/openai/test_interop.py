"""LangChain, instructor and LiteLLM as their packages are; ``make test-interop`` runs it alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import builders
from tests.own_environment import INTEROP, find_own_python, run_program
from tests.unit.marketplace.api.openai.test_tools import zone as tool_zone
from workers.protocol.generation import Written

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
]

zone = tool_zone


def fill(schema: dict[str, Any], whole: dict[str, Any]) -> Any:
    """The first value that a schema allows, as a node that follows it may write."""
    if "$ref" in schema:
        return fill(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "anyOf" in schema:
        return fill(schema["anyOf"][0], whole)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if schema.get("type") == "object":
        return {name: fill(part, whole) for name, part in schema.get("properties", {}).items()}
    return {"boolean": True, "string": "x"}[schema["type"]]


def test_langchain_instructor_and_litellm_get_structured_answers_and_calls(
    web: str, owner: Any, zone: Any, runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some fifty packages, which are none of ours, in an environment of their own.

    ``INTEROP_PYTHON`` is one that has them already.
    """

    def answer(question: Any, _adapter: Any, tell: Any) -> None:
        schema = json.loads(question.schema or "null")
        text = json.dumps(fill(schema, schema)) if schema else "On its way."
        tell(Written(question.token, text, prompt_tokens=1, answer_tokens=9, finish="stop"))

    monkeypatch.setattr(runtime, "answer", answer)
    python = find_own_python("requirements.txt", tmp_path / "own", variable="INTEROP_PYTHON")
    _, secret = builders.api_key(owner)
    said = run_program(
        python,
        str(INTEROP / "talk.py"),
        OPENAI_BASE_URL=f"{web}/v1",
        OPENAI_API_KEY=secret,
        MODEL=zone.name,
        # It asks the net for prices otherwise.
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )
    print(said)
    assert len(said.splitlines()) == 8
