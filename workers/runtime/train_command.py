"""``python -m workers train CONFIG.yaml``: the engine alone, without a market.

A configuration names a base model and jobs; all of them train together::

    base_model: bundled:finetender-tiny     # or a directory, or a hub id; or, with more to say,
                                            # {source: ..., revision: ..., four_bit: true}
    output: adapters
    jobs:
      - name: tone
        data: support_tone.jsonl
        adapter: {rank: 8, alpha: 16}
        training: {epochs: 3, learning_rate: 0.001}

Paths are relative to the configuration. Keys of ``adapter`` and ``training`` are those
of ``AdapterSpec`` and ``TrainingSpec``. Stopped by Ctrl-C, it writes checkpoints, and
``--resume`` goes on from them. Kernels and threads are those measured to be the fastest,
which changes the last digits from one run to the next; with ``reproducible: true`` they
are fixed, and one job alone gives the same adapter to the last bit on the same machine.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from tqdm import tqdm

from workers.protocol.blobs import hash_file
from workers.protocol.job_spec import (
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    DataFormat,
    JobSpec,
    TrainingSpec,
)
from workers.protocol.records import LineError, Row, read_rows
from workers.protocol.reports import Fault, ProgressEvent
from workers.protocol.wire import ProtocolError, from_json
from workers.runtime.checkpoint_pipe import list_checkpoints
from workers.runtime.job_sink import JobSummary
from workers.runtime.node_runtime import NodeRuntime
from workers.training.faults import TrainingFault, UserFault

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_JOB_KEYS = {"name", "data", "format", "validation", "base_model", "adapter", "training"}
_TOP_KEYS = {
    "base_model",
    "output",
    "device",
    "memory_gb",
    "reproducible",
    "jobs",
    "adapter",
    "training",
}


class _Yaml(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, but ``1e-4`` is a number, as in YAML 1.2."""


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+|[0-9]*\.[0-9]+|[0-9]+\.)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


class ConfiguredJob:
    """A job of the configuration, ready to attach."""

    def __init__(self, spec: JobSpec, data: Path, validation: Path | None) -> None:
        self.spec = spec
        self.data = data
        self.validation = validation


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workers train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--output", type=Path, help="where adapters go; overrides the file")
    parser.add_argument(
        "--device",
        help="cpu or cuda, by default what there is; cuda:0,cuda:1 divide the base among them",
    )
    parser.add_argument(
        "--gang", default="", help="further devices for soft prompts, such as cuda:1,cuda:2"
    )
    parser.add_argument("--resume", action="store_true", help="go on from earlier checkpoints")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    chosen = parser.parse_args(arguments)
    try:
        config = read_config(chosen.config)
        jobs = plan_jobs(config, chosen.config.parent)
        device = _device(chosen.device or config.get("device") or _best_device())
        output = _output(chosen.output or chosen.config.parent / config.get("output", "adapters"))
        return train(
            jobs,
            output=output,
            device=device,
            memory_gb=config.get("memory_gb"),
            gang_devices=[name for name in chosen.gang.split(",") if name],
            reproducible=config.get("reproducible", False),
            resume=chosen.resume,
            quiet=chosen.quiet,
        )
    except TrainingFault as fault:
        print(fault, file=sys.stderr)
        return 2


def read_config(path: Path) -> dict[str, Any]:
    """The configuration's top level.

    Raises
    ------
    UserFault
        Naming the key that is wrong.
    """
    try:
        # a safe loader with one more rule for numbers
        config = yaml.load(path.read_text(encoding="utf-8"), Loader=_Yaml)  # noqa: S506
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserFault(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise UserFault(f"{path} must hold base_model and jobs.")
    _only(config, _TOP_KEYS, "the configuration")
    if not isinstance(config.get("jobs"), list) or not config["jobs"]:
        raise UserFault("The configuration needs jobs, a list of at least one job.")
    for key in ("output", "device"):
        if not isinstance(config.get(key, ""), str):
            raise UserFault(f"{key} must be a text, not {config[key]!r}.")
    memory_gb = config.get("memory_gb", 1.0)
    if isinstance(memory_gb, bool) or not isinstance(memory_gb, (int, float)) or memory_gb <= 0:
        raise UserFault(f"memory_gb must be a number above 0, not {memory_gb!r}.")
    reproducible = config.get("reproducible", False)
    if not isinstance(reproducible, bool):
        raise UserFault(f"reproducible must be true or false, not {reproducible!r}.")
    return config


def plan_jobs(config: dict[str, Any], folder: Path) -> list[ConfiguredJob]:
    """The configuration's jobs; ``adapter`` and ``training`` at the top are their defaults."""
    jobs = [_planned(job, config, folder) for job in config["jobs"]]
    names = [job.spec.job_id for job in jobs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserFault(f"Two jobs are called {twice[0]!r}. Give each its own name.")
    return jobs


def train(
    jobs: list[ConfiguredJob],
    *,
    output: Path,
    device: str,
    memory_gb: float | None,
    gang_devices: Sequence[str] = (),
    reproducible: bool,
    resume: bool,
    quiet: bool,
) -> int:
    """Train all jobs together; a JSON line per job at the end; 0 when all finished."""
    runtime = NodeRuntime(
        device=device,
        cache_dir=output,
        memory_limit_gb=memory_gb,
        gang_devices=gang_devices,
        reproducible=reproducible,
    )
    bars: list[JobBar] = []
    try:
        for position, job in enumerate(jobs):
            directory = output / job.spec.job_id
            bar = JobBar(job.spec.job_id, position=position, quiet=quiet)
            runtime.attach(
                job=job.spec,
                data_path=job.data,
                validation_path=job.validation,
                checkpoint_paths=list_checkpoints(directory) if resume else (),
                sink=bar,
            )
            bars.append(bar)
        try:
            for bar in bars:
                bar.ended.wait()
        except KeyboardInterrupt:
            print("stopping: writing checkpoints", file=sys.stderr)
            for bar in bars:
                runtime.detach(bar.job_id, checkpoint=True)
            for bar in bars:
                bar.ended.wait()
    finally:
        runtime.close()
        for bar in bars:
            bar.close()
    for bar in bars:
        print(json.dumps(bar.result()))
    return 0 if all(bar.outcome == "finished" for bar in bars) else 1


class JobBar:
    """A job's progress bar; its sink."""

    def __init__(self, job_id: str, *, position: int, quiet: bool) -> None:
        self.job_id = job_id
        self.ended = threading.Event()
        self.outcome = ""
        self.reason = ""
        self.adapter: Path | None = None
        self.summary: JobSummary | None = None
        self._bar = tqdm(
            desc=job_id, position=position, unit="step", disable=quiet, dynamic_ncols=True
        )

    def progress(self, event: ProgressEvent) -> None:
        for line in event.log:
            self._bar.write(f"{self.job_id}: {line}", file=sys.stderr)
        self._bar.total = event.total_steps
        self._bar.n = event.step
        shown = {"loss": event.train_loss, "valid": event.valid_loss, "tok/s": event.tokens_per_s}
        self._bar.set_postfix({k: f"{v:.4g}" for k, v in shown.items() if v is not None})

    def checkpointed(self, path: Path, step: int) -> None:
        pass

    def paused(self, summary: JobSummary) -> None:
        self._end("paused", summary)

    def finished(self, adapter_dir: Path, summary: JobSummary) -> None:
        self.adapter = adapter_dir
        self._end("finished", summary)

    def failed(self, fault: Fault, reason: str, summary: JobSummary) -> None:
        self.reason = reason
        self._end("failed", summary)

    def close(self) -> None:
        self._bar.close()

    def result(self) -> dict[str, Any]:
        """What the command prints at the end."""
        assert self.summary is not None
        facts = asdict(self.summary)
        facts["checkpoint_path"] = facts["checkpoint_path"] and str(facts["checkpoint_path"])
        adapter = None if self.adapter is None else str(self.adapter)
        return {"outcome": self.outcome, "adapter": adapter, "reason": self.reason} | facts

    def _end(self, outcome: str, summary: JobSummary) -> None:
        self.outcome, self.summary = outcome, summary
        self.ended.set()


def _planned(job: Any, config: dict[str, Any], folder: Path) -> ConfiguredJob:
    if not isinstance(job, dict):
        raise UserFault("A job must have a name and data.")
    _only(job, _JOB_KEYS, "a job")
    name = str(job.get("name", ""))
    if not _NAME.fullmatch(name):
        raise UserFault(
            f"A job cannot be called {name!r}. Use letters, digits, dots, dashes and underscores."
        )
    data = _file(job.get("data"), folder, f"the data of {name}")
    validation = job.get("validation")
    base_model = _base_model(job.get("base_model") or config.get("base_model"), folder)
    try:
        adapter = from_json(AdapterSpec, _merged("adapter", config, job))
        training = from_json(TrainingSpec, _merged("training", config, job))
        chosen = None if job.get("format") is None else from_json(DataFormat, job["format"])
    except ProtocolError as error:
        raise UserFault(f"Job {name}: {error}.") from error
    spec = JobSpec(
        job_id=name,
        base_model=base_model,
        data_format=_format(data, chosen),
        dataset=BlobRef(url="", sha256=hash_file(data), bytes=data.stat().st_size),
        adapter=adapter,
        training=training,
    )
    held_out = None if validation is None else _file(validation, folder, "the validation data")
    return ConfiguredJob(spec, data, held_out)


def _base_model(value: Any, folder: Path) -> BaseModelRef:
    if not value:
        raise UserFault("The configuration names no base_model.")
    if isinstance(value, str):
        value = {"source": value}
    if not isinstance(value, dict):
        raise UserFault(f"base_model must be a text, or settings with a source, not {value!r}.")
    source = value.get("source")
    if not isinstance(source, str) or not source:
        raise UserFault("base_model needs a source: bundled:<name>, a directory, or a hub id.")
    if (folder / source).is_dir():
        source = str(folder / source)
    elif source.startswith((".", "/", "~")):
        raise UserFault(f"There is no folder {folder / source} with a base model.")
    try:
        return from_json(BaseModelRef, {"name": value["source"]} | value | {"source": source})
    except ProtocolError as error:
        raise UserFault(f"base_model: {error}.") from error


def _format(path: Path, chosen: DataFormat | None) -> DataFormat:
    """What the rows are; reads up to the first good one.

    The file's name counts here: a table whose columns are misspelt is no plain text.
    """
    fault: LineError | None = None
    with path.open("rb") as file:
        for value in read_rows(file, format=chosen, name=path.name):
            if isinstance(value, Row):
                return value.format
            fault = fault or value
    assert fault is not None, "a file without rows has a fault"
    where = "" if fault.fatal else f"No line of it is a row. Line {fault.line}: "
    raise UserFault(f"{path} cannot be used. {where}{fault.message}")


def _file(value: Any, folder: Path, what: str) -> Path:
    path = folder / str(value or "")
    if not value or not path.is_file():
        raise UserFault(f"There is no file {path} for {what}.")
    return path


def _merged(key: str, config: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """A group of settings: the job's own over the configuration's."""
    merged: dict[str, Any] = {}
    for settings in (config.get(key), job.get(key)):
        if not isinstance(settings or {}, dict):
            raise UserFault(f"{key} must hold settings with names, not {settings!r}.")
        merged |= settings or {}
    return merged


def _output(path: Path) -> Path:
    """The folder for adapters, made now: not after hours of training."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserFault(
            f"Adapters cannot be written to {path}: {error.strerror}. Choose another output."
        ) from error
    return path


def _device(name: str) -> str:
    """The device's name, if it is one the engine trains on and this machine has; or several."""
    if "," in name:
        return ",".join(map(_device, name.split(",")))
    if re.fullmatch(r"cpu|cuda(:\d+)?", name) is None:
        raise UserFault(f"device must be cpu, cuda or cuda:<number>, not {name!r}.")
    index = int(name.partition(":")[2] or 0)
    if name != "cpu" and index >= torch.cuda.device_count():
        raise UserFault(
            f"This machine has no device {name}; it has {torch.cuda.device_count()} CUDA devices. "
            "Choose cpu."
        )
    return name


def _only(value: dict[str, Any], keys: set[str], what: str) -> None:
    unknown = sorted(str(key) for key in value if key not in keys)
    if unknown:
        raise UserFault(
            f"{unknown[0]!r} is no key of {what}. Known are: {', '.join(sorted(keys))}."
        )


def _best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
