"""What changes data sets and jobs, one function per change.

- ``datasets``: an upload is read, counted and stored.
- ``life``: a job is opened, re-planned, cancelled, failed, settled.
- ``dispatch``: at slot boundaries, and whenever something changed, nodes get their plans.
- ``progress``: what running jobs report.
- ``uploads``: checkpoints and adapters.
- ``leases``: how a slice ends: with a result, or because its node was lost.
"""

from marketplace.jobs.services.datasets import (
    dataset_create,
    dataset_is_counted,
    dataset_tokens_ensure,
)
from marketplace.jobs.services.dispatch import slots_dispatch
from marketplace.jobs.services.leases import (
    LeaseLost,
    SliceOutcome,
    heartbeat_apply,
    leases_sweep,
    slice_finish,
)
from marketplace.jobs.services.life import (
    Opening,
    job_cancel,
    job_cells_replace,
    job_event_add,
    job_fail,
    job_open,
    job_replan_request,
    job_settled_mark,
    jobs_open,
)
from marketplace.jobs.services.progress import progress_record
from marketplace.jobs.services.uploads import adapter_store, checkpoint_store

__all__ = [
    "LeaseLost",
    "Opening",
    "SliceOutcome",
    "adapter_store",
    "checkpoint_store",
    "dataset_create",
    "dataset_is_counted",
    "dataset_tokens_ensure",
    "heartbeat_apply",
    "job_cancel",
    "job_cells_replace",
    "job_event_add",
    "job_fail",
    "job_open",
    "job_replan_request",
    "job_settled_mark",
    "jobs_open",
    "leases_sweep",
    "progress_record",
    "slice_finish",
    "slots_dispatch",
]
