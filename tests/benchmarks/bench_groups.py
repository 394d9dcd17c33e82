"""Jobs that a group of cards may hold, by the layout's own functions: ``python -m``.

Of default settings (rank 16, all projections), rows of up to 4,096 tokens; on one card, and on
groups of four and eight, which hold the base once.
"""

from __future__ import annotations

import json

from tests.shape_builders import build_llama_shape
from workers.protocol.job_bytes import JobNeed
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.memory import (
    GB,
    USABLE_SHARE,
    count_sold_job_bytes,
    find_longest_example,
)
from workers.protocol.part_memory import choose_cuts, share_base, size_node
from workers.protocol.pass_bytes import describe_device

BASES = {
    "Llama-3-8B": (4096, 32, 14336, 128256, 32),
    "Qwen3-32B": (5120, 64, 25600, 151936, 64),
    "Llama-3-70B": (8192, 80, 28672, 128256, 64),
}
CARDS = {"RTX 4090": 24, "A40": 48, "A100-40": 40, "A100-80, H100-80": 80, "H200": 141}
ROWS = 4096


def count_jobs(name: str, *, card_gb: float, parts: int, four_bit: bool) -> tuple[int, str]:
    """Jobs, and the blocks of each part."""
    hidden, layers, middle, vocab, heads = BASES[name]
    shape = build_llama_shape(
        hidden_size=hidden,
        layers=layers,
        intermediate_size=middle,
        vocab_size=vocab,
        heads=heads,
        kv_heads=8,
        head_size=128,
    )
    profile = describe_device("cuda", "auto")
    limit_gb = USABLE_SHARE["cuda"] * card_gb
    longest = find_longest_example(shape, sequence_length=ROWS)
    cuts = (layers,)
    if parts > 1:
        cuts = choose_cuts(shape, profile, parts=parts, limit_gb=limit_gb, four_bit=four_bit)
    sized = size_node(
        shape,
        profile,
        parts=share_base(shape, profile, cuts=cuts, four_bit=four_bit),
        limit_gb=limit_gb,
        longest_tokens=longest,
    )
    job = count_sold_job_bytes(shape, JobNeed(AdapterSpec()), dtype="auto", sequence_length=ROWS)
    jobs = 0 if sized is None else int(GB * sized.jobs_gb / job)
    return jobs, " ".join(map(str, cuts))


def main() -> None:
    for name in BASES:
        for four_bit in (False, True):
            for card, card_gb in CARDS.items():
                found = {
                    parts: count_jobs(name, card_gb=card_gb, parts=parts, four_bit=four_bit)
                    for parts in (1, 4, 8)
                }
                print(json.dumps({"base": name, "four_bit": four_bit, "card": card, **found}))


if __name__ == "__main__":
    main()
