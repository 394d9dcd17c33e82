"""What LangChain, instructor and LiteLLM ask of a model, with nothing of theirs changed.

``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and ``MODEL`` say where. Prints a line for each call.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any, Literal

import instructor
import litellm
import openai
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

MODEL = os.environ["MODEL"]
QUESTION = "Is the parcel late? Answer for the customer."


class Verdict(BaseModel):
    """What becomes of a parcel."""

    state: Literal["late", "in time"]
    lost: bool


class Note(BaseModel):
    """Any object: what a small model writes as JSON follows no schema that it was only told."""

    text: Any = None


@tool
def find_parcel(place: Literal["depot", "road"]) -> str:
    """Say where a parcel is."""
    return place


def say(client: str, what: str, answer: object) -> None:
    print(f"{client} {version(client)} | {what} | {answer!r}"[:200])


def ask_langchain() -> None:
    model = ChatOpenAI(model=MODEL, temperature=0.0, max_tokens=200)  # type: ignore[call-arg]
    for method in ("json_schema", "function_calling"):
        found = model.with_structured_output(Verdict, method=method).invoke(QUESTION)
        assert isinstance(found, Verdict)
        say("langchain-openai", f"with_structured_output, {method}", found)
    called = model.bind_tools([find_parcel], tool_choice="any").invoke(QUESTION)
    [call] = called.tool_calls
    assert call["name"] == "find_parcel"
    assert find_parcel.invoke(call["args"]) in ("depot", "road")
    say("langchain-openai", "bind_tools", call["args"])
    words = [part.content for part in model.stream(QUESTION)]
    say("langchain-openai", "stream", "".join(map(str, words)))


def ask_instructor() -> None:
    modes = instructor.Mode
    for mode, kind in ((modes.TOOLS, Verdict), (modes.JSON_SCHEMA, Verdict), (modes.JSON, Note)):
        client = instructor.from_openai(openai.OpenAI(), mode=mode)
        found = client.chat.completions.create(
            model=MODEL,
            response_model=kind,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=400,
            temperature=0.0,
            max_retries=1,
        )
        assert isinstance(found, kind)
        say("instructor", mode.name, found)


def ask_litellm() -> None:
    found: Any = litellm.completion(
        model=f"openai/{MODEL}",
        api_base=os.environ["OPENAI_BASE_URL"],
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=20,
    )
    say("litellm", "completion", found.choices[0].message.content)


if __name__ == "__main__":
    ask_langchain()
    ask_instructor()
    ask_litellm()
