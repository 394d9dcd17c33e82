"""llama.cpp, which Ollama is made of, answers with a GGUF export as PEFT does with the adapter."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from finetender.result_commands import write_modelfile
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.own_environment import INTEROP, find_own_python, run_program
from tests.unit.workers.exporting.test_exporting import BASE, tune
from workers.exporting.__main__ import export
from workers.protocol.exports import F16

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
QUESTION = "Where is my parcel?"


def answer_with_peft(adapter: Path, folder: Path) -> tuple[int, str]:
    """Tokens of the prompt, and the greedy answer."""
    with zipfile.ZipFile(adapter) as archive:
        archive.extractall(folder)
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE), folder).eval()
    asked = [{"role": "user", "content": QUESTION}]
    ids = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    with torch.inference_mode():
        found = model.generate(ids, max_new_tokens=24, do_sample=False)
    return ids.shape[1], tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True)


def test_llama_cpp_answers_as_the_adapter_does_beside_its_base(tmp_path: Path) -> None:
    python = find_own_python("llama_cpp.txt", tmp_path / "own", variable="LLAMA_CPP_PYTHON")
    adapter, _ = tune(BASE, tmp_path)
    out = tmp_path / "model.gguf"
    export(base=BASE, adapter=adapter, form=F16, out=out)
    # What `finetender export` writes for Ollama: the file beside it, and nothing of its own.
    source = write_modelfile(out).read_text().removeprefix("FROM ").strip()
    model = tmp_path / source
    said = run_program(python, str(INTEROP / "ask_llama_cpp.py"), str(model), QUESTION)
    found = json.loads(said)
    print(f"llama.cpp (xllamacpp {found['version']}) | GGUF f16, chat | {found['text']!r}")
    length, text = answer_with_peft(adapter, tmp_path / "unpacked")
    assert (found["text"], found["prompt_tokens"]) == (text, length)
    assert found["finish"] == "stop"
