"""How an adapter lies in memory: the rule by which the engine allocates and the market counts.

Each layer has two flat matrices, ``A[sum of rows, inputs]`` and ``B[sum of rows, outputs]``. An
adapter has its own rows of them, as in Punica (Chen et al. 2023, section 4) and S-LoRA (Sheng et
al. 2023, section 5). So a layer takes the sum of its adapters' rows, whichever they are.
"""

from __future__ import annotations

#: Kernels of grouped products want every size in eights.
GROUPED_STEP = 8
_ROWS_STEP = {"cpu": 1, "cuda": GROUPED_STEP}
#: What allocators round a tensor's bytes up to.
_ALLOCATION_STEP = {"cpu": 64, "cuda": 512}
FLOAT_BYTES = 4


def count_stack_rows(rank: int, *, device: str) -> int:
    """Rows that an adapter has in a layer's matrices: its rank, on GPUs in eights."""
    step = _ROWS_STEP[device]
    return -(-rank // step) * step


def count_tensor_bytes(values: int, *, device: str, width: int = FLOAT_BYTES) -> int:
    """Compute a tensor's bytes, for values of ``width`` bytes each, as allocators round it."""
    step = _ALLOCATION_STEP[device]
    return -(-values * width // step) * step


def count_trained_bytes(values: int, *, device: str) -> int:
    """Bytes of a tensor that trains: value, gradient and AdamW's two moments."""
    return 4 * count_tensor_bytes(values, device=device)


def count_matrix_bytes(rank: int, width: int, *, device: str) -> int:
    """Bytes that one adapter adds to one of a layer's matrices, with gradient and moments.

    Moments are tensors of the job's own, of its rank.
    """
    rows = count_stack_rows(rank, device=device)
    stacked = count_tensor_bytes(rows * width, device=device)
    return 2 * stacked + 2 * count_tensor_bytes(rank * width, device=device)
