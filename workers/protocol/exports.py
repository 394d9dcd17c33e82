"""Adapters in other forms: what a node is asked to make of one, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from workers.protocol.job_spec import BaseModelRef, BlobRef

#: A tar with the merged weights as ``transformers`` loads them, and GGUF files.
MERGED, F16, Q8_0 = "merged", "gguf-f16", "gguf-q8_0"
FORMS = (MERGED, F16, Q8_0)


@dataclass(frozen=True, slots=True)
class ExportTask:
    """An adapter to be merged into its base model and written in a form."""

    base_model: BaseModelRef
    adapter: BlobRef
    form: str
