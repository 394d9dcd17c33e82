"""Every operation of both OpenAPI documents is reached by the SDK, as the document says it."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from string import Formatter
from typing import Any

import httpx
import pytest
from finetender import AsyncClient, Client, Connection
from finetender.operation_list import OPERATIONS
from finetender.resources import RESOURCES

from marketplace.api.openapi import render_schema
from marketplace.api.sdk_types import OPERATIONS_GUIDE, WRITTEN

ROOT = Path(__file__).parents[4]
DOCUMENTS = {surface: json.loads(render_schema(surface)) for surface in ("api/", "v1/")}
DESCRIBED = {
    operation["operationId"]: (method.upper(), path, operation, document)
    for document in DOCUMENTS.values()
    for path, methods in document["paths"].items()
    for method, operation in methods.items()
}


class Recorder(httpx.MockTransport):
    """Notes what is sent, and answers that all is well."""

    def __init__(self) -> None:
        self.sent: list[httpx.Request] = []
        super().__init__(self.answer)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        return httpx.Response(200, json={"heard": True})


def fill(path: str) -> tuple[dict[str, str], str]:
    parts = {name: f"a {name}/?" for _, name, _, _ in Formatter().parse(path) if name}
    quoted = {name: value.replace("/", "%2F").replace("?", "%3F") for name, value in parts.items()}
    return parts, path.format(**quoted).replace(" ", "%20")


def find_form(operation: Any, document: Any) -> str | None:
    """The member of a form that a file goes along as."""
    content = operation.get("requestBody", {}).get("content", {})
    if list(content) != ["multipart/form-data"]:
        return None
    name = content["multipart/form-data"]["schema"]["$ref"].rpartition("/")[2]
    members = document["components"]["schemas"][name]["properties"]
    [file] = [member for member, of in members.items() if of.get("format") == "binary"]
    return file


def test_the_documents_have_no_name_twice() -> None:
    count = sum(len(methods) for of in DOCUMENTS.values() for methods in of["paths"].values())
    assert len(DESCRIBED) == count > 100


@pytest.mark.parametrize("name", DESCRIBED)
def test_an_operation_is_asked_for_as_the_document_says(name: str, tmp_path: Path) -> None:
    method, path, operation, document = DESCRIBED[name]
    assert name in OPERATIONS, "run manage.py settings_write"
    values, expected = fill(path)
    recorder = Recorder()
    file = None
    member = find_form(operation, document)
    if member is not None:
        file = tmp_path / "rows.jsonl"
        file.write_text("{}")
    body = {"told": "so"} if "requestBody" in operation else None
    connection = Connection(transport=recorder)
    with Client("http://market.example", "k", connection=connection) as client:
        if OPERATIONS[name].is_file:
            target = client.download_file(name, tmp_path / "file", **values)
            assert json.loads(target.read_text()) == {"heard": True}
        else:
            answer = client.call(name, body=body, file=file, **values)
            assert answer == {"heard": True}
    [request] = recorder.sent
    assert (request.method, request.url.raw_path.decode()) == (method, expected)
    keyed = [of["name"] for of in operation.get("parameters", ()) if of["in"] == "header"]
    assert ("Idempotency-Key" in request.headers) == ("Idempotency-Key" in keyed)
    if member is not None:
        assert f'name="{member}"; filename="rows.jsonl"'.encode() in request.read()
    elif body is not None:
        assert json.loads(request.read()) == body


def test_the_table_of_the_guide_has_every_operation() -> None:
    table = (ROOT / OPERATIONS_GUIDE).read_text()
    assert table == WRITTEN[OPERATIONS_GUIDE]()
    for name, (method, path, _, _) in DESCRIBED.items():
        assert f"| `{method} {path}` | `client." in table
        assert f"`finetender api {name}" in table


def test_commands_name_operations_that_there_are() -> None:
    named = [of.operation for _, actions in RESOURCES.values() for of in actions.values()]
    assert set(named) <= DESCRIBED.keys()


def test_both_clients_have_the_same_calls(tmp_path: Path) -> None:
    def list_calls(kind: type) -> set[str]:
        return {name for name, of in inspect.getmembers(kind, callable) if not name.startswith("_")}

    assert list_calls(Client) == list_calls(AsyncClient)

    async def ask() -> str:
        connection = Connection(transport=Recorder())
        async with AsyncClient("http://market.example", "k", connection=connection) as client:
            return (await client.download_transcript("z", tmp_path / "log")).read_text()

    assert json.loads(asyncio.run(ask())) == {"heard": True}
