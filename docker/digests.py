"""Pin the images of the Docker files to the digests that their tags have now: ``make digests``."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parent
#: An image of a registry, with the digest that it has in the file. Stages have no tag.
IMAGE = re.compile(
    r"^(?P<before>FROM |\s+image: )(?P<name>[\w./-]+:[\w.-]+)(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
    r"(?=\s|$)",
    re.MULTILINE,
)


def pin_images(text: str, *, find_digest: Callable[[str], str]) -> str:
    """The text with each image at the digest that is found for its name."""
    return IMAGE.sub(
        lambda found: f"{found['before']}{found['name']}@{find_digest(found['name'])}", text
    )


def ask_registry(name: str) -> str:
    """The digest of all platforms of an image, as its registry has it now."""
    command = ["docker", "buildx", "imagetools", "inspect", name]
    command += ["--format", "{{.Manifest.Digest}}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    for path in (*sorted(FOLDER.glob("*.Dockerfile")), FOLDER / "compose.yml"):
        before = path.read_text()
        after = pin_images(before, find_digest=ask_registry)
        path.write_text(after)
        print(f"{path.name}: {'changed' if after != before else 'as it was'}")
