"""The seeded faults fit the code as it is: a fault that cannot be seeded finds nothing."""

from __future__ import annotations

import pytest

from tests.mutations.__main__ import FAULTS, ROOT


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_stands_once_and_has_tests(name: str) -> None:
    fault = FAULTS[name]
    assert (ROOT / fault["file"]).read_text().count(fault["was"]) == 1
    assert fault["is"] != fault["was"]
    assert [test for test in fault["tests"].split() if not (ROOT / test).exists()] == []
