"""Two releases of the market side by side on one machine, for the drill of an upgrade."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

from marketplace.embedded.house import build_market_programs, build_node_program
from marketplace.embedded.servers import Program
from tests.unit.docker.test_docker import ROOT

#: Built, and no part of the repository.
PAGES = Path("marketplace", "web", "static", "web", "build")
#: What a release after this one might bring: a column, an index on a table that is filled, and a
#: value for old rows, each as docs/how-to/migration.md has it.
COLUMN = """
from django.db import migrations, models

class Migration(migrations.Migration):
    dependencies = [("auction", "0001_initial")]
    operations = [
        migrations.AddField("bid", "drilled", models.CharField(max_length=8, null=True)),
    ]
"""
INDEX = """
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

class Migration(migrations.Migration):
    atomic = False
    dependencies = [("auction", "0002_drilled")]
    operations = [
        AddIndexConcurrently("bid", models.Index(fields=["drilled"], name="auction_bid_drilled")),
    ]
"""
FILLING = '''
from django.db import migrations

def fill(apps, editor):
    apps.get_model("auction", "Bid").objects.filter(drilled=None).update(drilled="old")

def leave(apps, editor):
    """What was filled goes with the column."""

class Migration(migrations.Migration):
    dependencies = [("auction", "0003_drilled_index")]
    operations = [migrations.RunPython(fill, leave, elidable=True)]
'''
NEXT_MIGRATIONS = {
    "0002_drilled": COLUMN,
    "0003_drilled_index": INDEX,
    "0004_drilled_fill": FILLING,
}
NEXT_FIELD = "    drilled = models.CharField(max_length=8, null=True)\n\n    class Meta:\n"
NEXT_INDEX = 'models.Index(fields=["drilled"], name="auction_bid_drilled"),'


def find_last_release() -> str | None:
    """The tag of the last release, if there was any."""
    done = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


def prepare_releases(folder: Path) -> tuple[Path, Path]:
    """Folders of the last release and of the one that takes its place.

    Before the first release there is nothing that this tree could take the place of: it is then
    the last release itself, and the next is a copy of it with a later number and migrations.
    """
    last, other = find_last_release(), folder / "release"
    if last is None:
        _copy_tree(other)
        _make_next(other)
        return ROOT, other
    packed = subprocess.run(["git", "archive", last], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(other, filter="data")
    # Of its pages only those that this tree has built are here.
    shutil.copytree(ROOT / PAGES, other / PAGES)
    return other, ROOT


def _copy_tree(folder: Path) -> None:
    """Copy what may differ: ``scheduler``, which takes a minute to compile, is taken from here."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if name.startswith("scheduler/") or not (ROOT / name).is_file():
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    shutil.copytree(ROOT / PAGES, folder / PAGES)


def _make_next(folder: Path) -> None:
    for name, text in NEXT_MIGRATIONS.items():
        (folder / "marketplace" / "auction" / "migrations" / f"{name}.py").write_text(text)
    bids = folder / "marketplace" / "auction" / "models" / "bids.py"
    before, of_bid = bids.read_text().split("class Bid(models.Model):")
    of_bid = of_bid.replace("    class Meta:\n", NEXT_FIELD, 1)
    of_bid = of_bid.replace("indexes = [", f"indexes = [\n            {NEXT_INDEX}", 1)
    bids.write_text(f"{before}class Bid(models.Model):{of_bid}")
    joining = folder / "workers" / "protocol" / "joining.py"
    text, changed = re.subn(
        r'^RELEASE = "(\d+)\.\d+\.\d+"', r'RELEASE = "\1.99.0"', joining.read_text(), flags=re.M
    )
    assert changed == 1
    joining.write_text(text)


def run_from(folder: Path) -> dict[str, str]:
    """Environment in which Python takes the market from a folder, wherever it is started."""
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONSAFEPATH": "1"}


def build_programs(data_dir: Path, port: int) -> list[Program]:
    """The market's programs, and the house's own node."""
    node = replace(build_node_program(data_dir), stop_within_s=60)
    return [*build_market_programs(port), node]
