"""A zone's book: its engine, log, snapshots, reservations, proofs and their verification."""
