"""What a base model on disk is: one hash of all that decides what it computes."""

from __future__ import annotations

import hashlib
from pathlib import Path

from workers.protocol.blobs import hash_file

#: Weights, the model's shape, and how text becomes tokens; not what else a hub has beside them.
_NAMES = (
    *("model*.safetensors", "pytorch_model*.bin", "config.json", "generation_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "*.jinja", "additional_chat_templates/*.jinja"),
)


def hash_base_files(directory: Path) -> str:
    """SHA-256 of the names and contents of a model's files, in hexadecimal.

    What else is in the directory, such as a model card, does not count.
    """
    digest = hashlib.sha256()
    for path in sorted({path for name in _NAMES for path in directory.glob(name)}):
        digest.update(f"{path.name} {hash_file(path)}\n".encode())
    return digest.hexdigest()
