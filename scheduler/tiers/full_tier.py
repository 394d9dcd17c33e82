"""What a job that should move does while every worker is taken.

It can queue (its checkpoint waits, it does not progress) or stay on serverless
(it progresses at the serverless price). Corrected Algorithm 1 answers with a
time budget per job: everybody stays for F seconds, then queues. The improved
policy keeps Algorithm 1 as the setter of the *size* of that budget but pools it:
jobs bring ``min(run time, F)`` each and the pool is spent where a serverless
second saves most waiting, on the jobs with the least left. Equal spending, fewer
jobs in the queue.
"""

from __future__ import annotations


def allowance_s(predicted_s: float, threshold_s: float) -> float:
    """GPU seconds per GPU that a job brings to the pool when it arrives."""
    return min(predicted_s, threshold_s)


def stays(expected_s: float, gpus: float, pool_s: float, committed_s: float) -> bool:
    """Whether the pool covers a job to its end besides what it already covers.

    Parameters
    ----------
    expected_s : float
        Expected remaining run time, seconds.
    gpus : float
        GPUs of the gang.
    pool_s : float
        GPU seconds brought by all jobs so far, minus those spent on serverless.
    committed_s : float
        GPU seconds promised to other jobs that stay.
    """
    return committed_s + expected_s * gpus <= pool_s
