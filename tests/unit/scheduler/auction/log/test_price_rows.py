"""Prices in the log: rows that nodes share, numbered once and for all."""

from __future__ import annotations

import json

from scheduler.auction.log import codec


def test_rows_keep_their_numbers_however_the_names_of_their_nodes_sort() -> None:
    prices = {"node_a": (0.0, 1.0), "node_c": (2.0, 0.0), "node_b": (-0.0, 1.0)}
    written = json.dumps(codec._write_rows(prices), sort_keys=True)
    read = codec._read_rows(json.loads(written), dict)
    assert read == prices
    assert json.dumps(codec._write_rows(read), sort_keys=True) == written
