"""A PostgreSQL cluster whose database is migrated, made once and copied for each run of the tests.

Migrating takes longer than most test files. The cluster lies in the folder of the tests' data
under a name that changes with every migration, and is made again where it is missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from marketplace.config.leftovers import remove_leftovers
from marketplace.embedded.servers import prepare_postgres, wait_for_postgres
from marketplace.embedded.stack import Stack

ROOT = Path(__file__).parents[1]
CLUSTERS_DIR = ROOT / ".data" / "tests" / "clusters"


def copy_migrated_cluster(data_dir: Path) -> None:
    """Put a cluster with a migrated database into the directory of a stack that has none."""
    data_dir.mkdir(parents=True, exist_ok=True)
    made = _ensure_cluster()
    # With owners and permissions: where tests run as root, PostgreSQL does not.
    subprocess.run(["cp", "-a", made / "postgres", data_dir / "postgres"], check=True)


def _ensure_cluster() -> Path:
    made = CLUSTERS_DIR / _name_migrations()
    if made.is_dir():
        return made
    CLUSTERS_DIR.mkdir(parents=True, exist_ok=True)
    remove_leftovers(CLUSTERS_DIR, "part-*")
    part = CLUSTERS_DIR / f"part-{os.getpid()}"
    postgres = prepare_postgres(data_dir=part, durable=False)
    with Stack(data_dir=part, programs=[postgres.program]) as stack:
        stack.start("postgres")
        wait_for_postgres(postgres)
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "marketplace.config.settings.test",
            "DATABASE_URL": postgres.url,
            "REDIS_URL": "redis://127.0.0.1:1/0",
        }
        migrate = ("-W", "ignore", str(ROOT / "manage.py"), "migrate", "--no-input", "-v", "0")
        subprocess.run([sys.executable, *migrate], cwd=ROOT, env=environment, check=True)
    for old in CLUSTERS_DIR.iterdir():
        if not old.name.startswith("part-"):
            shutil.rmtree(old, ignore_errors=True)
    try:
        part.rename(made)
    except OSError:
        # Another run was quicker.
        shutil.rmtree(part, ignore_errors=True)
    return made


def _name_migrations() -> str:
    """Changes with every migration of ours and every version of a package that may have some."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.glob("marketplace/*/migrations/*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    for name, version in sorted((d.name.lower(), d.version) for d in distributions()):
        digest.update(f"{name}=={version}\n".encode())
    return digest.hexdigest()[:16]
