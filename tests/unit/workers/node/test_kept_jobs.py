"""What jobs leave on a machine's disk: neither a full disk nor another thread stops the node."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from workers.node.kept_jobs import KeptJobs


def build_spec(job_id: str) -> Any:
    job = SimpleNamespace(
        job_id=job_id, dataset=None, validation_dataset=None, warm_start=None, lookup=None
    )
    return SimpleNamespace(job=job, resume_from=None)


def test_a_folder_that_goes_meanwhile_is_not_listed(tmp_path, monkeypatch):
    kept = KeptJobs(work=tmp_path, cache=SimpleNamespace())  # type: ignore[arg-type]
    for name in ("a", "b"):
        kept.note(build_spec(name))
    gone = [*tmp_path.glob("*/blobs.json"), tmp_path / "gone" / "blobs.json"]
    monkeypatch.setattr(Path, "glob", lambda *_: iter(gone))
    assert sorted(kept.list()) == ["a", "b"]


def test_a_full_disk_is_logged_and_the_job_goes_on(tmp_path, caplog):
    (tmp_path / "a").write_text("no folder")
    kept = KeptJobs(work=tmp_path, cache=SimpleNamespace())  # type: ignore[arg-type]
    kept.note(build_spec("a"))
    assert "a: its files were not written down" in caplog.text
