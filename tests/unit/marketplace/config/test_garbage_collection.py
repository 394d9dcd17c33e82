"""Garbage is looked for rarely in processes that bids wait for, and found all the same."""

from __future__ import annotations

import gc
import weakref

import pytest

from marketplace.config.garbage_collection import THRESHOLDS, freeze_gc


@pytest.fixture(autouse=True)
def as_before():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Node:
    other: Node


def circle() -> weakref.ref[Node]:
    one, other = Node(), Node()
    one.other, other.other = other, one
    return weakref.ref(one)


def test_what_is_loaded_is_left_out_and_what_comes_later_is_not():
    kept = gc.get_freeze_count()
    loaded = Node()
    loaded.other = loaded
    alive = weakref.ref(loaded)
    freeze_gc()
    assert gc.get_freeze_count() > kept
    assert gc.get_threshold() == THRESHOLDS
    del loaded
    assert circle()() is not None
    gc.collect()
    assert alive() is not None
    later = circle()
    gc.collect()
    assert later() is None


def test_garbage_from_before_is_not_kept():
    gone = circle()
    freeze_gc()
    assert gone() is None


def test_young_garbage_is_found_unasked():
    freeze_gc()
    gone = circle()
    made = []
    while gone() is not None and len(made) <= THRESHOLDS[0]:
        made.append([])
    assert gone() is None
