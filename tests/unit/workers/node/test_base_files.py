"""Fetching a base model from a hub on a real socket: counted, checked, explained."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": bytes(range(256)) * 4000,
    "original/consolidated.pth": b"another format of the same weights",
    "pytorch_model.bin": b"and another",
}
FETCH = """
import json, sys
from workers.node.base_files import check_disk, fetch, find_missing_files
from workers.node.credentials import NodeSettingsError
from workers.protocol.job_spec import BaseModelRef
from pathlib import Path
for source in sys.argv[2:]:
    ref, shares = BaseModelRef("big", source), []
    try:
        missing = find_missing_files(ref)
        found = None if missing is None else missing.bytes
        if missing is not None:
            check_disk(Path(sys.argv[1]), [missing])
            fetch(missing, tell=shares.append)
        print(json.dumps([found, shares[-1:], find_missing_files(ref) is None]))
    except NodeSettingsError as error:
        print(json.dumps(str(error)))
"""


class Hub(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.split("?")[0]
        if "/gated/" in path or not path.startswith(("/api/models/org/big", "/org/big/resolve/")):
            return self._send(401, b"{}", {"X-Error-Code": "GatedRepo"}, with_body)
        if "/tree/" in path:
            rows = [
                {"type": "file", "path": name, "size": len(data), "oid": self._name(data)}
                for name, data in FILES.items()
            ]
            return self._send(200, json.dumps(rows).encode(), {}, with_body)
        if path.startswith("/api/"):
            info = {"id": "org/big", "sha": COMMIT, "siblings": []}
            return self._send(200, json.dumps(info).encode(), {}, with_body)
        data = FILES[path.split(f"/{COMMIT}/")[1]]
        headers = {"ETag": f'"{self._name(data)}"', "X-Repo-Commit": COMMIT}
        return self._send(200, data, headers, with_body)

    def _name(self, data: bytes) -> str:
        return hashlib.sha1(data).hexdigest()

    def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@pytest.fixture
def fetch_from_hub(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()

    def run(*sources: str, **more: str) -> list[Any]:
        # Its own process: the client reads its settings once.
        environment = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path / "hub"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
        }
        done = subprocess.run(
            [sys.executable, "-c", FETCH, str(tmp_path), *sources],
            env=os.environ | environment | more,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    yield run
    server.shutdown()
    thread.join()
    server.server_close()


def test_only_what_is_needed_and_missing_is_fetched(fetch_from_hub):
    wanted = len(FILES["config.json"]) + len(FILES["model.safetensors"])
    here = [None, [], True]
    assert fetch_from_hub("org/big", "org/big") == [[wanted, [1.0], True], here]
    # A hub that is away is not missed then.
    assert fetch_from_hub("org/big", HF_ENDPOINT="http://127.0.0.1:9") == [here]


def test_a_model_that_cannot_be_had_is_said_with_what_to_do(fetch_from_hub):
    sources = ("org/gated/x", "gated/model", "no such place")
    for source, said in zip(sources, fetch_from_hub(*sources), strict=True):
        assert f"The base model big cannot be fetched from '{source}'" in said
        assert "set HF_TOKEN" in said
