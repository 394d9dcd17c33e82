"""Whether an export's values are the base's with the adapter's changes in them, row by row.

``W' = W + s B A`` (Hu et al. 2021, section 4.1); with DoRA each output row of ``W'`` then has the
length that was learnt for it (Liu et al. 2024, equation 5). The market computes bounds of a row:
float32 sums in any order lie between them. Both bounds are rounded as the file's values are, and
as rounding keeps their order, each value of the file must lie between the results. So a change
of one unit in the last place is seen, and where rounding leaves nothing of an adapter's change,
the base's own value is the right one.

Where the base model lies on this machine, tensors that the adapter does not change are compared
whole, and of the others rows that no node can foresee and those that the adapter changes most.

Of a base on the hub, 128 blocks of 64 KiB of what the adapter does not change are drawn by size,
and one more of each tensor among 64. Where a share ``s`` of those bytes is not the base's, the file
passes with a probability of at most ``(1 - s) ** 128``: 1 in 100 at 3.5 %. A single row of a large
embedding passes nearly always. All of it is not fetched, since the node waits for the answer to its
upload: embedding and head of an 8 B base are 2 GB, and a mixture's experts nearly all of its files.
An operator who downloads the base to the market's machine has all of it compared.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from marketplace.fleet.base_weights import BLOCK_BYTES, StoredTensor, read_floats
from workers.protocol.export_check import ExportFileError, FoundTensor
from workers.protocol.gguf_head import ROPE_FACTORS, find_rope_factors, order_rows
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.safetensors_header import VALUE_BYTES

_PREFIX = "base_model.model."
#: Rows of a tensor that are compared because the adapter changes them most.
_MOST_CHANGED_ROWS = 2
#: Rows of a tensor that are drawn, where the adapter changes it and the base is here.
_DRAWN_ROWS = 8
#: Of a base on the hub: tensors of which a row is compared, and blocks that are drawn besides.
_FAR_TENSORS, _FAR_BLOCKS = 64, 128
#: What is compared of a tensor at once, where all of it is.
_WHOLE_BYTES = 4 * 1024 * 1024
#: Tensors that are compared because the adapter changes them most, where not all are.
_MOST_CHANGED_TENSORS = 16
#: Of a sum of so many terms, per term (two units of float32), and of a row's length.
_SUM_ERROR, _LENGTH_ERROR = 2.0**-23, 1e-5
#: Of one of Q8_0's codes, before it is rounded.
_CODE_ERROR = 1e-4
_Q8_BLOCK, _Q8_BYTES, _Q8_MOST = 32, 34, 127
#: safetensors' names of the types that a model's configuration names.
_DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}


@dataclass(frozen=True, slots=True)
class Change:
    """What an adapter adds to a tensor: ``left @ right``."""

    #: [rows of the tensor, rank]
    left: np.ndarray
    #: [rank, columns of the tensor]
    right: np.ndarray
    #: With DoRA the lengths of outputs.
    magnitude: np.ndarray | None


@dataclass(frozen=True, slots=True)
class MostChanged:
    """Rows of a tensor to which an adapter adds most, and the length of the most."""

    rows: tuple[int, ...] = ()
    length: float = 0.0


@dataclass(frozen=True, slots=True)
class MergedRows:
    """Rows of a base model's tensors with an adapter in them."""

    base: Mapping[str, StoredTensor]
    #: Of the adapter, by PEFT's names.
    adapter: Mapping[str, StoredTensor]
    spec: AdapterSpec
    #: Whether projections keep their weights transposed (``Conv1D``).
    transposed: bool
    #: The base model's.
    config: Mapping[str, Any]

    def find_change(self, name: str) -> Change | None:
        """What the adapter does to a tensor by its name in the base model."""
        module = f"{_PREFIX}{name.removesuffix('.weight')}"
        down = self.adapter.get(f"{module}.lora_A.weight")
        if down is None:
            return None
        a = down.read().astype(np.float64)
        b = self.spec.scale * self.adapter[f"{module}.lora_B.weight"].read().astype(np.float64)
        magnitude = self.adapter.get(f"{module}.lora_magnitude_vector")
        lengths = None if magnitude is None else magnitude.read().astype(np.float64)
        return Change(a.T, b.T, lengths) if self.transposed else Change(b, a, lengths)

    def list_most_changed(self, name: str) -> MostChanged:
        change = self.find_change(name)
        if change is None:
            return MostChanged()
        products = change.right @ change.right.T
        squares = ((change.left @ products) * change.left).sum(axis=1)
        rows = np.argsort(squares)[-_MOST_CHANGED_ROWS:]
        return MostChanged(tuple(rows.tolist()), max(float(squares[rows[-1]]), 0.0) ** 0.5)

    def read_unchanged(self, name: str, first: int, count: int) -> np.ndarray:
        """Rows that the adapter leaves as they are, in the type that merging writes."""
        stored = self.base[name]
        return _round(stored.read_rows(first, count), promote(stored.dtype, self.config))

    def bound_row(
        self, name: str, row: int, change: Change | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The least and the most that merging may make of a row, in the type that it writes."""
        stored = self.base[name]
        values = stored.read_row(row).astype(np.float64)
        slack = np.zeros_like(values)
        if change is not None:
            left, terms = change.left[row], change.left.shape[1] + 2
            sizes = np.abs(values) + np.abs(left) @ np.abs(change.right)
            values = values + left @ change.right
            slack = terms * _SUM_ERROR * sizes
            if change.magnitude is not None:
                ratio = self._find_ratio(stored, row, values, change, change.magnitude)
                values = values * ratio
                slack = slack * np.abs(ratio) + _LENGTH_ERROR * np.abs(values)
        dtype = promote(stored.dtype, self.config)
        return _round(values - slack, dtype), _round(values + slack, dtype)

    def _find_ratio(
        self,
        stored: StoredTensor,
        row: int,
        values: np.ndarray,
        change: Change,
        magnitude: np.ndarray,
    ) -> Any:
        if not self.transposed:
            return magnitude[row] / np.linalg.norm(values)
        merged = stored.read().astype(np.float64) + change.left @ change.right
        return magnitude / np.linalg.norm(merged, axis=0)


def promote(stored: str, config: Mapping[str, Any]) -> str:
    """The type that ``workers.exporting.merging`` writes, which holds the stored and the named."""
    named = str(config.get("dtype") or config.get("torch_dtype") or "float16")
    other = _DTYPES.get(named, stored)
    if {stored, other} == {"F16", "BF16"}:
        return "F32"
    return max(stored, other, key=lambda dtype: VALUE_BYTES[dtype])


def _round(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round to a type; merging computes in float32, of wider types too."""
    rounded = values.astype(np.float32)
    if dtype == "F16":
        return rounded.astype(np.float16).astype(np.float32)
    if dtype == "BF16":
        bits = rounded.view(np.uint32)
        bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (bits & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded


def compare_rows(
    file: IO[bytes],
    found: Mapping[str, FoundTensor],
    *,
    rows: MergedRows,
    names: Mapping[str, str],
    gguf_config: Mapping[str, Any] | None,
) -> None:
    """Compare tensors, or rows of them, with what the market computes.

    Parameters
    ----------
    found
        Tensors of the file by the base model's names.
    names
        Names of tensors in the base model by the file's.
    gguf_config
        The base model's configuration, where the file has GGUF's order of rows.

    Raises
    ------
    ExportFileError
    """
    draw = random.SystemRandom()
    if gguf_config is not None and (factors := find_rope_factors(gguf_config)) is not None:
        _compare(ROPE_FACTORS, _read_row(file, found[ROPE_FACTORS], 0), "F32", factors, factors)
    changed = {name: rows.list_most_changed(source) for name, source in names.items()}
    furthest = sorted(changed, key=lambda name: changed[name].length)[-_MOST_CHANGED_TENSORS:]
    far = sorted(name for name, source in names.items() if rows.base[source].is_far)
    kept = [name for name in far if not changed[name].rows]
    sizes = [rows.base[names[name]].row_bytes * rows.base[names[name]].rows for name in kept]
    blocks = Counter(draw.choices(kept, sizes, k=_FAR_BLOCKS) if kept else ())
    drawn = {*draw.sample(far, min(_FAR_TENSORS, len(far))), *furthest, *blocks}
    for name in sorted(names.keys() - set(far) | drawn):
        tensor, source = found[name], names[name]
        change, stored = rows.find_change(source), rows.base[source]
        is_matrix = len(tensor.shape) > 1
        count = tensor.shape[0] if is_matrix else 1
        order = np.arange(count)
        if gguf_config is not None and is_matrix:
            order = np.asarray(order_rows(order, source, gguf_config))
        places = np.argsort(order)
        if change is None and is_matrix:
            for first, last in _choose_runs(draw, stored, blocks[name]):
                bound = rows.read_unchanged(source, first, last - first)
                runs = [_read_row(file, tensor, int(place)) for place in places[first:last]]
                _compare(name, b"".join(runs), tensor.dtype, bound, bound)
            continue
        some = {draw.randrange(count) for _ in range(1 if stored.is_far else _DRAWN_ROWS)}
        for row in sorted({*some, *changed[name].rows}):
            low, high = rows.bound_row(source, row, change)
            if gguf_config is not None and not is_matrix:
                low, high = (order_rows(bound, source, gguf_config) for bound in (low, high))
            content = _read_row(file, tensor, int(places[row]))
            _compare(name, content, tensor.dtype, low, high)


def _choose_runs(
    draw: random.SystemRandom, stored: StoredTensor, blocks: int
) -> Iterator[tuple[int, int]]:
    """First rows of what is compared of a tensor, and those after its last ones."""
    if not stored.is_far:
        step = max(1, _WHOLE_BYTES // stored.row_bytes)
        for first in range(0, stored.rows, step):
            yield first, min(first + step, stored.rows)
        return
    length = min(max(1, BLOCK_BYTES // stored.row_bytes), stored.rows)
    for _ in range(1 + blocks):
        first = draw.randrange(stored.rows - length + 1)
        yield first, first + length


def _compare(name: str, content: bytes, dtype: str, low: np.ndarray, high: np.ndarray) -> None:
    if dtype == "Q8_0":
        is_right = _is_quantised(content, low, high)
    else:
        values = read_floats(content, dtype)
        is_right = bool(np.all((_round(low, dtype) <= values) & (values <= _round(high, dtype))))
    if not is_right:
        raise ExportFileError(f"{name} is not the base's with the adapter in it")


def _is_quantised(content: bytes, low: np.ndarray, high: np.ndarray) -> bool:
    """Whether blocks of Q8_0 are what ``gguf`` makes of values between two bounds.

    A block's step is its largest value's 127th part; each code is a value in steps, rounded.
    """
    blocks = np.frombuffer(content, np.uint8).reshape(-1, _Q8_BYTES)
    step = blocks[:, :2].copy().view("<f2").astype(np.float64)
    codes = blocks[:, 2:].view(np.int8).astype(np.float64)
    least, most = (bound.reshape(-1, _Q8_BLOCK).astype(np.float64) for bound in (low, high))
    crosses = (least < 0) & (most > 0)
    nearest = np.where(crosses, 0.0, np.minimum(np.abs(least), np.abs(most)))
    furthest = np.maximum(np.abs(least), np.abs(most))
    steps = [bound.max(axis=1, keepdims=True) / _Q8_MOST for bound in (nearest, furthest)]
    shortest, longest = (bound.astype(np.float32).astype(np.float16) for bound in steps)
    if not np.all((shortest <= step) & (step <= longest)):
        return False
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [np.nan_to_num(bound / one) for bound in (least, most) for one in steps]
    fewest, largest = (choose(ratios, axis=0) for choose in (np.min, np.max))
    from_, to = _round_away(fewest - _CODE_ERROR), _round_away(largest + _CODE_ERROR)
    return bool(np.all((from_ <= codes) & (codes <= to)))


def _round_away(values: np.ndarray) -> np.ndarray:
    """Round to whole numbers, halves away from zero."""
    return np.sign(values) * np.floor(np.abs(values) + 0.5)


def _read_row(file: IO[bytes], tensor: FoundTensor, row: int) -> bytes:
    size = tensor.bytes // (tensor.shape[0] if len(tensor.shape) > 1 else 1)
    file.seek(tensor.at + row * size)
    return file.read(size)
