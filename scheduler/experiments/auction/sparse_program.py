"""Linear and integer programs for HiGHS, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np


class SparseProgram:
    """Columns between 0 and 1 and rows of a program to maximise, collected sparsely."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.start: list[int] = [0]
        self.index: list[int] = []
        self.value: list[float] = []

    def column(self, cost: float) -> int:
        self.cost.append(cost)
        return len(self.cost) - 1

    def row(self, terms: Sequence[tuple[int, float]], lower: float, upper: float) -> None:
        self.index.extend(column for column, _ in terms)
        self.value.extend(value for _, value in terms)
        self.start.append(len(self.index))
        self.lower.append(lower)
        self.upper.append(upper)

    def model(self, *, integer: bool) -> highspy.HighsLp:
        lp = highspy.HighsLp()
        lp.num_col_ = len(self.cost)
        lp.num_row_ = len(self.lower)
        lp.sense_ = highspy.ObjSense.kMaximize
        lp.col_cost_ = np.array(self.cost, np.float64)
        lp.col_lower_ = np.zeros(len(self.cost))
        lp.col_upper_ = np.ones(len(self.cost))
        lp.row_lower_ = np.array(self.lower, np.float64)
        lp.row_upper_ = np.array(self.upper, np.float64)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self.start, np.int32)
        lp.a_matrix_.index_ = np.array(self.index, np.int32)
        lp.a_matrix_.value_ = np.array(self.value, np.float64)
        if integer:
            lp.integrality_ = [highspy.HighsVarType.kInteger] * len(self.cost)
        return lp
