"""Start vLLM by a line of ours and ask it a question, in the folder that the line is for.

The arguments are the line, a free port, the model's name and the question. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import vllm

WITHIN_S = 600
#: What a machine with two cores and little memory needs; none of it is about the adapter.
SMALL = ("--dtype", "float32", "--max-model-len", "256", "--enforce-eager")


def main() -> None:
    line, port, model, question = sys.argv[1:]
    program, verb, base, *options = shlex.split(line)
    if (program, verb) != ("vllm", "serve"):
        raise SystemExit(f"this starts no vLLM: {line}")
    # The command 'vllm' asks for a package of its own name, which this build has not. This is what
    # 'vllm serve' starts.
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", base]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    with Path("vllm.log").open("w") as log:
        started = subprocess.Popen(
            [*server, *options, *SMALL, "--port", port], env=environment, stdout=log, stderr=log
        )
    try:
        wait_until_up(started, f"http://127.0.0.1:{port}/health")
        messages = [{"role": "user", "content": question}]
        asked = {"model": model, "messages": messages, "max_tokens": 24, "temperature": 0}
        answer = ask(f"http://127.0.0.1:{port}/v1/chat/completions", asked)
    finally:
        started.terminate()
        started.wait(60)
    [choice] = answer["choices"]
    told = {
        "version": vllm.__version__,
        "text": choice["message"]["content"],
        "finish": choice["finish_reason"],
        "prompt_tokens": answer["usage"]["prompt_tokens"],
    }
    print(json.dumps(told))


def wait_until_up(started: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        if started.poll() is not None:
            raise SystemExit(Path("vllm.log").read_text())
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise SystemExit(f"not up in {WITHIN_S} s: {Path('vllm.log').read_text()}")


def ask(url: str, asked: dict[str, object]) -> dict[str, object]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
