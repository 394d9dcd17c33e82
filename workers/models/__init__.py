"""The base model that comes with Finetender, its recipe, and two small data sets.

``bundled:<name>`` is the source of a model in this folder.
"""

from pathlib import Path

_HERE = Path(__file__).parent

BUNDLED_PREFIX = "bundled:"
#: The one bundled base model.
TINY = "finetender-tiny"
DATASETS = _HERE / "datasets"


def find_bundled_path(source: str) -> Path:
    """The directory of ``bundled:<name>``.

    Raises
    ------
    LookupError
        With the names there are, when this is none of them.
    """
    name = source.removeprefix(BUNDLED_PREFIX)
    if name != TINY or not source.startswith(BUNDLED_PREFIX):
        raise LookupError(f"{source} is no bundled model. There is {BUNDLED_PREFIX}{TINY}.")
    return _HERE / name


def is_bundled(source: str) -> bool:
    return source.startswith(BUNDLED_PREFIX)
