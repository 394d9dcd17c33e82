"""Dropout masks that are a pure function of job, step, row, position and column.

A mask drawn from a generator depends on everything drawn before it, so a job's masks
would change with its neighbours, with the way a batch is cut into packs, and when a
layer is recomputed under gradient checkpointing. Here each element's bit is a hash of
what it belongs to. The "random state" of a job is then its seed and its step.

The hash is ``lowbias32`` (C. Wellons, "Prospecting for Hash Functions", 2018).
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch

_GOLDEN = 0x9E3779B9
_MASK = 0xFFFFFFFF
#: Elements of a mask that are drawn at once: their hashes take eight bytes each meanwhile.
_HASHED_AT_ONCE = 1 << 20


def hash_sequence(*, seed: int, step: int, row: int, part: int) -> int:
    """The 32-bit key of one sequence of one step.

    Parameters
    ----------
    row : int
        The example's place in the job's batch.
    part : int
        Which of the example's sequences (a preference has two).
    """
    return zlib.crc32(f"{seed}/{step}/{row}/{part}".encode())


def hash_tokens(key: int, length: int) -> np.ndarray:
    """``int32[length]``: one key per token of a sequence."""
    positions = np.arange(length, dtype=np.uint64)
    mixed = (positions * _GOLDEN + key) & _MASK
    return _lowbias32_numpy(mixed).astype(np.uint32).view(np.int32)


def hash_columns(name: str, width: int, device: torch.device) -> torch.Tensor:
    """``int32[width]``: one key per input column of the module called ``name``."""
    columns = np.arange(width, dtype=np.uint64)
    mixed = (columns * 0x85EBCA6B + zlib.crc32(name.encode())) & _MASK
    keys = _lowbias32_numpy(mixed).astype(np.uint32).view(np.int32)
    return torch.from_numpy(keys.copy()).to(device)


def draw_keep_mask(
    keys_T: torch.Tensor, keys_D: torch.Tensor, threshold_T: torch.Tensor
) -> torch.Tensor:
    """``bool[T, D]``: which elements stay.

    Parameters
    ----------
    threshold_T : int32[T]
        ``compute_drop_threshold`` of each token's job; 0 keeps everything.
    """
    keep_TD = torch.empty(len(keys_T), len(keys_D), dtype=torch.bool, device=keys_T.device)
    step = max(1, _HASHED_AT_ONCE // len(keys_D))
    for at in range(0, len(keys_T), step):
        part = slice(at, at + step)
        hash_TD = _hash(keys_T[part], keys_D).bitwise_and_(0x7FFFFFFF)
        torch.ge(hash_TD, threshold_T[part, None], out=keep_TD[part])
    return keep_TD


def draw_uniform(keys_T: torch.Tensor, keys_D: torch.Tensor) -> torch.Tensor:
    """``float32[T, D]`` from -1 to 1."""
    return (_hash(keys_T, keys_D) & 0x7FFFFFFF).float() / float(1 << 30) - 1.0


def add_noise(
    embeddings_TD: torch.Tensor, keys_T: torch.Tensor, noise_T: torch.Tensor
) -> torch.Tensor:
    """NEFTune's noise on the rows of jobs that ask for it (Jain et al. 2023, section 2)."""
    width = embeddings_TD.shape[1]
    columns_D = hash_columns("embeddings", width, embeddings_TD.device)
    noise_TD = draw_uniform(keys_T, columns_D)
    noise_TD *= noise_T[:, None] / math.sqrt(width)
    return embeddings_TD + noise_TD.to(embeddings_TD.dtype)


def _hash(keys_T: torch.Tensor, keys_D: torch.Tensor) -> torch.Tensor:
    """``int32[T, D]``."""
    hash_TD = keys_T[:, None] ^ keys_D[None, :]
    hash_TD ^= (hash_TD >> 16).bitwise_and_(0xFFFF)
    hash_TD *= 0x7FEB352D
    hash_TD ^= (hash_TD >> 15).bitwise_and_(0x1FFFF)
    # 0x846CA68B as the signed number with the same bits
    hash_TD *= 0x846CA68B - (1 << 32)
    hash_TD ^= (hash_TD >> 16).bitwise_and_(0xFFFF)
    return hash_TD


def compute_drop_threshold(probability: float) -> int:
    """The 31-bit number below which a hash drops its element."""
    return min(int(probability * (1 << 31)), (1 << 31) - 1)


def _lowbias32_numpy(value: np.ndarray) -> np.ndarray:
    value = value ^ (value >> 16)
    value = (value * 0x7FEB352D) & _MASK
    value = value ^ (value >> 15)
    value = (value * 0x846CA68B) & _MASK
    return value ^ (value >> 16)
