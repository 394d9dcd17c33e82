"""The base model's files on this machine: what is missing, whether it fits, and fetching it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import DryRunError, HfHubHTTPError, HFValidationError
from huggingface_hub.file_download import DryRunFileInfo, repo_folder_name

from workers.models import is_bundled
from workers.node.credentials import NodeSettingsError
from workers.protocol.job_spec import BaseModelRef

#: Left free beside what is fetched: data sets and checkpoints of the first jobs.
FREE_BESIDE_GB = 2.0
#: What a model may consist of; other formats of the same weights stay where they are.
_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_NOT_WANTED = ["original/*", "onnx/*", "openvino/*"]
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """What has to be fetched before a base model can be loaded."""

    ref: BaseModelRef
    bytes: int


def find_missing_files(ref: BaseModelRef) -> MissingFiles | None:
    """What of the model the hub has and this machine lacks; ``None`` where it is all here.

    A hub that cannot be asked is no fault where an earlier download is whole.

    Raises
    ------
    NodeSettingsError
        The hub does not give it; the text says what to do.
    """
    if is_bundled(ref.source) or Path(ref.source).is_dir():
        return None
    with _explained(ref):
        try:
            files = snapshot_download(
                ref.source,
                revision=ref.revision,
                allow_patterns=_WANTED,
                ignore_patterns=_NOT_WANTED,
                dry_run=True,
            )
        except DryRunError:
            snapshot_download(
                ref.source,
                revision=ref.revision,
                allow_patterns=_WANTED,
                ignore_patterns=_NOT_WANTED,
                local_files_only=True,
            )
            return None
    assert isinstance(files, list)
    return MissingFiles(ref, _count_bytes(files)) if _count_bytes(files) else None


def check_disk(folder: Path, missing: list[MissingFiles]) -> float:
    """GB free where this node keeps its files.

    Raises
    ------
    NodeSettingsError
        There is too little for the models and for jobs.
    """
    models_gb = sum(one.bytes for one in missing) / 1e9
    cache = _find_existing(Path(constants.HF_HUB_CACHE))
    free_gb = shutil.disk_usage(folder).free / 1e9
    places = {cache: models_gb, folder: FREE_BESIDE_GB}
    if cache.stat().st_dev == folder.stat().st_dev:
        places = {folder: models_gb + FREE_BESIDE_GB}
    for place, needed_gb in places.items():
        there_gb = shutil.disk_usage(place).free / 1e9
        if there_gb < needed_gb:
            raise NodeSettingsError(
                f"{place} has {there_gb:.1f} GB free; the base model and the first jobs need "
                f"{needed_gb:.1f} GB. Make room, or set HF_HOME and --state-dir to a larger disk."
            )
    return free_gb


def fetch(missing: MissingFiles, *, tell: Callable[[float], None]) -> None:
    """Fetch what is missing; what an earlier try fetched counts.

    Parameters
    ----------
    tell
        Called about once a second with the share that is here, from 0 to 1.

    Raises
    ------
    NodeSettingsError
        It does not arrive; the text says what to do.
    """
    repository = repo_folder_name(repo_id=missing.ref.source, repo_type="model")
    blobs = Path(constants.HF_HUB_CACHE) / repository / "blobs"
    before = _measure(blobs)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_EVERY_S):
            tell(min(0.99, (_measure(blobs) - before) / missing.bytes))

    watcher = threading.Thread(target=watch, name="download-bar", daemon=True)
    watcher.start()
    try:
        with _explained(missing.ref):
            snapshot_download(
                missing.ref.source,
                revision=missing.ref.revision,
                allow_patterns=_WANTED,
                ignore_patterns=_NOT_WANTED,
            )
    finally:
        done.set()
        watcher.join()
    tell(1.0)


def _count_bytes(files: list[DryRunFileInfo]) -> int:
    return sum(file.file_size or 0 for file in files if file.will_download)


def _measure(folder: Path) -> int:
    """Bytes in a folder that others write to."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        # Renamed since it was listed.
        except OSError:
            continue
    return total


def _find_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


@contextmanager
def _explained(ref: BaseModelRef) -> Iterator[None]:
    try:
        yield
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise NodeSettingsError(
            f"The base model {ref.name} cannot be fetched from {ref.source!r}: {reason}. If it is "
            "gated, accept its terms on the hub and set HF_TOKEN; else check this machine's "
            "network and disk."
        ) from error
