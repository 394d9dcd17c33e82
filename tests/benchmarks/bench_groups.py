"""Jobs that cards may hold, by the functions that market and node share: ``python -m``.

Of default settings (rank 16, all projections), rows of up to 4,096 tokens; on one card, and on
groups of four and eight, which hold the base once. It prints a table in Markdown; bases are in 16
bits / in four.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.shape_builders import build_llama_shape
from workers.protocol.job_bytes import JobNeed
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.memory import GB, USABLE_SHARE, count_sold_job_bytes, find_longest_example
from workers.protocol.part_memory import choose_cuts, share_base, size_node
from workers.protocol.pass_bytes import describe_device

#: Width, blocks, width of the middle, vocabulary, heads, and width of one.
BASES = {
    "Llama-3.2-1B": (2048, 16, 8192, 128256, 32, 64),
    "Llama-3.1-8B": (4096, 32, 14336, 128256, 32, 128),
    "Qwen3-8B": (4096, 36, 12288, 151936, 32, 128),
    "Qwen3-32B": (5120, 64, 25600, 151936, 64, 128),
    "Llama-3.1-70B": (8192, 80, 28672, 128256, 64, 128),
}
#: GB that the driver shows.
CARDS = {
    "RTX 4090": 25.3,
    "A40": 47.7,
    "A100-40": 42.4,
    "A100-80, H100-80": 85.0,
    "H200": 150.0,
}
SIZES = (1, 4, 8)
ROWS = 4096


def count_jobs(name: str, *, card: str, parts: int = 1, four_bit: bool = False) -> int:
    """Jobs that so many cards hold together."""
    hidden, layers, middle, vocab, heads, width = BASES[name]
    shape = build_llama_shape(
        hidden_size=hidden,
        layers=layers,
        intermediate_size=middle,
        vocab_size=vocab,
        heads=heads,
        kv_heads=8,
        head_size=width,
    )
    profile, limit_gb = describe_device("cuda", "auto"), USABLE_SHARE["cuda"] * CARDS[card]
    cuts = (layers,)
    if parts > 1:
        cuts = choose_cuts(shape, profile, parts=parts, limit_gb=limit_gb, four_bit=four_bit)
    sized = size_node(
        shape,
        profile,
        parts=share_base(shape, profile, cuts=cuts, four_bit=four_bit),
        limit_gb=limit_gb,
        longest_tokens=find_longest_example(shape, sequence_length=ROWS),
    )
    job = count_sold_job_bytes(shape, JobNeed(AdapterSpec()), dtype="auto", sequence_length=ROWS)
    return 0 if sized is None else int(GB * sized.jobs_gb / job)


def list_lines() -> Iterator[str]:
    """The table: a base and a number of cards a line."""
    yield f"| Base, cards | {' | '.join(CARDS)} |"
    yield "|--|" + "--|" * len(CARDS)
    for name in BASES:
        for parts in SIZES:
            cells = [
                " / ".join(
                    str(count_jobs(name, card=card, parts=parts, four_bit=four_bit))
                    for four_bit in (False, True)
                )
                for card in CARDS
            ]
            yield f"| {name if parts == 1 else ''}, {parts} | {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(list_lines()))
