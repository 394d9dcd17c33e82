"""Runs of the tests that begin at once share one migrated cluster."""

from pathlib import Path
from threading import Thread

import pytest

from tests import migrated_cluster

#: Seconds in which a run that waits for no lock would have copied a folder of one file.
UNLOCKED_S = 0.5


def test_two_first_runs_make_one_cluster_and_both_copy_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = tmp_path / "clusters"
    (clusters / "of-other-migrations").mkdir(parents=True)
    made: list[Path] = []
    second = Thread(
        target=migrated_cluster.copy_migrated_cluster,
        args=(tmp_path / "second",),
        kwargs={"clusters_dir": clusters},
    )

    def make(part: Path) -> None:
        made.append(part)
        if len(made) == 1:
            second.start()
            second.join(UNLOCKED_S)
        (part / "postgres").mkdir(parents=True)
        (part / "postgres" / "base").write_text("migrated")

    monkeypatch.setattr(migrated_cluster, "_make_cluster", make)
    migrated_cluster.copy_migrated_cluster(tmp_path / "first", clusters_dir=clusters)
    second.join(60)
    assert len(made) == 1
    for run in ("first", "second"):
        assert (tmp_path / run / "postgres" / "base").read_text() == "migrated"
    names = sorted(path.name for path in clusters.iterdir())
    assert names == sorted([migrated_cluster.LOCK, migrated_cluster._name_migrations()])
