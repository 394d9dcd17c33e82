"""A PostgreSQL cluster whose database is migrated, made once and copied for each run of the tests.

Migrating takes longer than most test files. The cluster lies in the folder of the tests' data
under a name that changes with every migration, and is made again where it is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path

from marketplace.embedded.house import note_tables
from marketplace.embedded.servers import prepare_postgres, wait_for_postgres
from marketplace.embedded.stack import Stack

ROOT = Path(__file__).parents[1]
CLUSTERS_DIR = ROOT / ".data" / "tests" / "clusters"
#: In that folder: held by the run that makes or copies a cluster.
LOCK = "lock"


def copy_migrated_cluster(data_dir: Path, *, clusters_dir: Path = CLUSTERS_DIR) -> None:
    """Put a cluster with a migrated database into the directory of a stack that has none."""
    data_dir.mkdir(parents=True, exist_ok=True)
    # Of two runs that find no cluster the second waits, and copies what the first has made. The
    # copy is made under the lock too: a run of other migrations removes this cluster.
    with _lock(clusters_dir):
        made = _ensure_cluster(clusters_dir)
        # With owners and permissions: where tests run as root, PostgreSQL does not.
        subprocess.run(["cp", "-a", made / "postgres", data_dir / "postgres"], check=True)
    note_tables(data_dir)


@contextmanager
def _lock(clusters_dir: Path) -> Iterator[None]:
    clusters_dir.mkdir(parents=True, exist_ok=True)
    with (clusters_dir / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _ensure_cluster(clusters_dir: Path) -> Path:
    """The folder of the cluster with all migrations; call while holding the lock."""
    made = clusters_dir / _name_migrations()
    if made.is_dir():
        return made
    for old in clusters_dir.iterdir():
        # Of other migrations, or half made by a run that was killed.
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
    part = clusters_dir / f"part-{os.getpid()}"
    _make_cluster(part)
    return part.rename(made)


def _make_cluster(data_dir: Path) -> None:
    postgres = prepare_postgres(data_dir=data_dir, durable=False)
    with Stack(data_dir=data_dir, programs=[postgres.program]) as stack:
        stack.start("postgres")
        wait_for_postgres(postgres)
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "marketplace.config.settings.test",
            "DATABASE_URL": postgres.url,
            "DATABASE_OWNER_URL": postgres.owner_url,
            "REDIS_URL": "redis://127.0.0.1:1/0",
        }
        migrate = ("-W", "ignore", str(ROOT / "manage.py"), "migrate", "--no-input", "-v", "0")
        subprocess.run([sys.executable, *migrate], cwd=ROOT, env=environment, check=True)


def _name_migrations() -> str:
    """Changes with every migration of ours and every version of a package that may have some."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.glob("marketplace/*/migrations/*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    for name, version in sorted((d.name.lower(), d.version) for d in distributions()):
        digest.update(f"{name}=={version}\n".encode())
    return digest.hexdigest()[:16]
