"""``python -m workers.exporting``: one adapter in one form.

Exits with 0 when the file is written, and with 3 and a sentence on standard error when the model or
the adapter cannot be exported in this form.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

from workers.exporting.gguf_files import write_gguf
from workers.exporting.merged_files import write_merged
from workers.exporting.merging import ExportError, open_merged
from workers.protocol.exports import FORMS, MERGED

EXIT_UNFIT = 3
#: The node trains on the others.
_THREADS = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.exporting", description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="directory of the base model")
    parser.add_argument("--adapter", type=Path, required=True, help="zip of the adapter")
    parser.add_argument("--form", choices=FORMS, required=True)
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    options = parser.parse_args()
    torch.set_num_threads(_THREADS)
    try:
        export(base=options.base, adapter=options.adapter, form=options.form, out=options.out)
    except ExportError as error:
        print(error, file=sys.stderr)
        return EXIT_UNFIT
    return 0


def export(*, base: Path, adapter: Path, form: str, out: Path) -> None:
    """Write an adapter, a zip, merged into its base model.

    Raises
    ------
    ExportError
        It cannot be had in this form.
    OSError
        Such as a full disk.
    """
    with tempfile.TemporaryDirectory(dir=out.parent) as name:
        folder = Path(name)
        with zipfile.ZipFile(adapter) as archive:
            archive.extractall(folder)
        with open_merged(base=base, adapter=folder) as weights:
            if form == MERGED:
                write_merged(weights, base=base, adapter=folder, out=out)
            else:
                write_gguf(weights, base=base, adapter=folder, out=out, form=form)


if __name__ == "__main__":
    sys.exit(main())
