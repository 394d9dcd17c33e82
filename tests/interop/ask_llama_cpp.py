"""Have llama.cpp open a GGUF file and answer a question by the template in it.

The arguments are the file and the question. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

import xllamacpp


def main() -> None:
    path, question = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.warmup = 512, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    server = xllamacpp.Server(params)
    asked = {"messages": [{"role": "user", "content": question}], "max_tokens": 24}
    answer = server.handle_chat_completions(asked | {"temperature": 0})
    [choice] = answer["choices"]
    told = {
        "version": version("xllamacpp"),
        "text": choice["message"]["content"],
        "finish": choice["finish_reason"],
        "prompt_tokens": answer["usage"]["prompt_tokens"],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
