"""What anybody can check of a published log with the standard library and ``cryptography``.

The market writes and replays its log with these modules, and the package ``finetender-verify`` is
made of them (``frontend/verify``). So they name each other by where they stand, and import nothing
else of the market.
"""

from .proof import ProofCheck, Step, check_proof, check_receipt
from .transcript import ChainCheck, check_transcript
from .witness import read_witness

__all__ = [
    "ChainCheck",
    "ProofCheck",
    "Step",
    "check_proof",
    "check_receipt",
    "check_transcript",
    "read_witness",
]
