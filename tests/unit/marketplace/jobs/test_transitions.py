"""The life of a job as a closed table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.jobs.models import Job, JobStatus
from marketplace.jobs.transitions import ALLOWED, WrongTransition, set_status

ENDS = {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED}


@given(st.sampled_from(JobStatus), st.lists(st.sampled_from(JobStatus), max_size=12))
def test_whatever_is_asked_a_job_only_takes_steps_of_the_table_and_never_leaves_an_end(
    start: JobStatus, asked: list[JobStatus]
):
    job = Job(status=start)
    for status in asked:
        before = JobStatus(job.status)
        if status == before or status in ALLOWED[before]:
            set_status(job, status)
            assert job.status == status
            assert before not in ENDS or status == before
        else:
            with pytest.raises(WrongTransition):
                set_status(job, status)
            assert job.status == before


def test_every_status_has_its_row_and_every_job_can_reach_each_end():
    assert set(ALLOWED) == set(JobStatus)
    reached = {JobStatus.QUEUED}
    while (wider := reached.union(*(ALLOWED[status] for status in reached))) != reached:
        reached = wider
    assert reached == set(JobStatus)
    assert all(ALLOWED[end] == frozenset() for end in ENDS)
