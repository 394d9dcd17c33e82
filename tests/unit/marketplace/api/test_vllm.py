"""vLLM, started by the lines that results come with, answers as PEFT does with the adapter."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from finetender.adapter_archives import read_vllm_line

from marketplace.common import clock
from marketplace.embedded.servers import find_free_port
from marketplace.jobs.models import Job
from marketplace.jobs.serving_lines import list_serving_lines
from marketplace.jobs.tuned_models import TunedModel
from tests import market_builders as market
from tests.own_environment import INTEROP, find_own_python, run_program
from tests.unit.marketplace.api import test_exports
from tests.unit.workers.exporting.test_llama_cpp import QUESTION, answer_with_peft
from workers.exporting.__main__ import export
from workers.models import TINY, find_bundled_path
from workers.protocol.exports import MERGED

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
]
owner, zone, node, job, tuned = (
    getattr(test_exports, name) for name in ("owner", "zone", "node", "job", "tuned")
)
#: An index may have them for GPUs only; vLLM does without.
UNUSED = ("torchaudio", "torchcodec", "torchvision")


def ask_vllm(python: str, line: str, *, folder: Path, model: str) -> dict[str, Any]:
    """What vLLM answers that is started by a line in a folder."""
    done = subprocess.run(
        [python, INTEROP / "ask_vllm.py", line, str(find_free_port()), model, QUESTION],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_vllm_answers_by_both_lines_as_the_adapter_does(job: Job, tmp_path: Path) -> None:
    python = find_own_python("vllm.txt", tmp_path / "own", variable="VLLM_PYTHON")
    run_program(python, "-m", "pip", "uninstall", "--quiet", "--yes", *UNUSED)
    home, base = tmp_path / "home", find_bundled_path(f"bundled:{TINY}")
    shutil.copytree(base, home / TINY)
    artifact = TunedModel(job, market.checkpoint(job, step=4)).take_artifact(now=clock.now())
    adapter = tmp_path / "adapter.zip"
    with artifact.file.open("rb") as file:
        adapter.write_bytes(file.read())
    with zipfile.ZipFile(adapter) as archive:
        archive.extractall(home / job.pk)
    served = read_vllm_line(adapter, job.pk)
    assert served is not None
    # The same line as on the job's page, but for how its folder is written.
    shown, _ = list_serving_lines(job, is_mergeable=True)
    assert shown.text == served.replace(f"={job.pk}", f"=./{job.pk}")
    merged = tmp_path / "merged.tar"
    export(base=base, adapter=adapter, form=MERGED, out=merged)
    whole = f"./{job.pk}-merged"
    with tarfile.open(merged) as archive:
        archive.extractall(home / whole, filter="data")
    length, text = answer_with_peft(adapter, tmp_path / "peft")
    for line, model in ((served, job.pk), (f"vllm serve {whole}", whole)):
        found = ask_vllm(python, line, folder=home, model=model)
        print(f"vLLM {found['version']} | {line} | {found['text']!r}")
        assert (found["text"], found["prompt_tokens"]) == (text, length)
