"""Exports that strangers made: tensors of the base's names and shapes pass, nothing else does."""

from __future__ import annotations

import io
import pickle
import struct

import numpy as np
import pytest

from tests.export_builders import (
    build_gguf,
    build_merged,
    build_weights,
)
from tests.market_builders import SHAPE
from workers.protocol.export_check import ExportFileError, list_export_tensors
from workers.protocol.exports import F16, MERGED, Q8_0

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
PICKLE = pickle.dumps({"weights": [1.0]})
NAN = np.full((64, 64), np.nan, "f2")


def check(content: bytes, form: str) -> None:
    list_export_tensors(io.BytesIO(content), form=form)


def test_the_bases_own_tensors_pass():
    check(build_merged(SHAPE, **{"tokenizer.json": b"{}", "merges.txt": b"a b"}), MERGED)
    check(build_gguf(SHAPE), F16)
    check(build_gguf(SHAPE), Q8_0)
    norm = {"blk.1.attn_q_norm.weight": np.ones(SHAPE.head_size, "f4")}
    check(build_gguf(SHAPE, **norm), F16)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"pytorch_model.bin": PICKLE}, "it holds 'pytorch_model.bin', which no model has"),
        ({"modeling_llama.py": b"import os"}, "it holds 'modeling_llama.py'"),
        ({"model.safetensors": PICKLE}, "model.safetensors is no safetensors file"),
        ({"../escape.json": b"{}"}, "no plain tar"),
        ({"/etc/passwd": b"x"}, "no plain tar"),
        ({"a/config.json": b"{}"}, "no plain tar"),
        ({"model.safetensors": b"\xff" * 8 + b"{}"}, "its header does not fit"),
        ({"model.safetensors": struct.pack("<Q", 2**62)}, "its header does not fit"),
        (
            {
                "model.safetensors": build_weights(
                    SHAPE, **{Q_PROJ: np.full((64, 64), np.nan, "f2")}
                )
            },
            "q_proj.weight holds values that are not finite",
        ),
        (
            {"model.safetensors": build_weights(SHAPE, **{Q_PROJ: np.ones((64, 64), "u1")})},
            "of type U8, which no base's weights are",
        ),
        ({"model-00002-of-00002.safetensors": build_weights(SHAPE)}, "stands in it twice"),
    ],
)
def test_merged_weights_with_anything_else_are_refused(files, reason):
    with pytest.raises(ExportFileError, match=reason):
        check(build_merged(SHAPE, **files), MERGED)


def test_tars_that_are_cut_off_or_hold_links_or_lack_a_part_are_refused():
    whole = build_merged(SHAPE)
    for content in (whole[: len(whole) // 2], whole[:100], b"", PICKLE):
        with pytest.raises(ExportFileError):
            check(content, MERGED)
    linked = bytearray(whole)
    linked[156:157] = b"2"
    with pytest.raises(ExportFileError, match="no plain tar"):
        check(bytes(linked), MERGED)
    absurd = bytearray(whole)
    absurd[124:136] = b"777777777777"
    with pytest.raises(ExportFileError, match="cut off"):
        check(bytes(absurd), MERGED)


def test_a_file_twice_in_a_tar_and_more_tensors_than_expected_are_refused():
    whole = build_merged(SHAPE)
    length = int(whole[124:136].strip(b"\0 "), 8)
    first = whole[: 512 + -(-length // 512) * 512]
    with pytest.raises(ExportFileError, match=r"it holds 'config\.json' twice"):
        check(first + whole, MERGED)
    for content, form in ((whole, MERGED), (build_gguf(SHAPE), F16)):
        count = len(list_export_tensors(io.BytesIO(content), form=form))
        assert len(list_export_tensors(io.BytesIO(content), form=form, most=count)) == count
        with pytest.raises(ExportFileError, match=f"more than {count - 1} tensors"):
            list_export_tensors(io.BytesIO(content), form=form, most=count - 1)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"output_norm.weight": np.full(64, np.inf, "f4")}, "output_norm.weight holds values"),
        ({"key": "general.alignment"}, "aligned in an unusual way"),
    ],
)
def test_a_gguf_file_of_other_tensors_is_refused(changed, reason):
    with pytest.raises(ExportFileError, match=reason):
        check(build_gguf(SHAPE, **changed), F16)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"GGUF\x02\0\0\0", "no GGUF file of version 3"),
        (PICKLE, "no GGUF file"),
        (b"GGUF\x03\0\0\0", "cut off"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**40, 0), "more than 100,000 tensors"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 1, 1, 2**60), "a text in its header is too long"),
        (
            struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 8, 2**60),
            "a list in its header",
        ),
        (
            struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 4, 2**60),
            "cut off or too long",
        ),
        (build_gguf(SHAPE)[:-64], "cut off"),
        (build_gguf(SHAPE) + b"\0" * 64, "something follows its tensors"),
    ],
)
def test_a_damaged_gguf_file_is_refused(content, reason):
    with pytest.raises(ExportFileError, match=reason):
        check(content, F16)
