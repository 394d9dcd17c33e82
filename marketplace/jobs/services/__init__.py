"""What changes data sets and jobs, one function per change.

- ``intake``: an upload is stored, and decided where a person has to choose.
- ``parts``: a file that arrives in parts.
- ``readings``: a worker reads an upload, which becomes a data set.
- ``held_out``: validation data are compared with the data that are trained on.
- ``deletion``: data sets, adapters and jobs are deleted, when asked or when their time is over.
- ``opening``: jobs of admitted bids are opened.
- ``life``: a job is re-planned, cancelled, failed, settled.
- ``dispatch``: at slot boundaries, and whenever something changed, nodes get their plans.
- ``handout``: a node that asks gets its newest plan.
- ``fault_attribution``: which nodes a late end is charged to, beside those that failed the job.
- ``progress``: what running jobs report.
- ``uploads``: checkpoints and adapters.
- ``slices``: how a slice ends: with a result, or because its node was lost.
- ``finished_slices``: whether a job that its node calls done is done.
- ``user_faults``: whether a node that blames the input is right.
- ``system_faults``: where a job goes on after a fault of the market, and when it is given up.
"""

from marketplace.jobs.dataset_tokens import ensure_dataset_tokens, is_dataset_counted
from marketplace.jobs.held_out import check_held_out, is_held_out_checked
from marketplace.jobs.lease_checks import LeaseLost
from marketplace.jobs.services.deletion import (
    delete_adapter,
    delete_all_of,
    delete_checkpoint_models,
    delete_dataset,
    delete_job,
    delete_unretained,
    note_adapter_use,
)
from marketplace.jobs.services.dispatch import dispatch_slots
from marketplace.jobs.services.handout import hand_out_plans
from marketplace.jobs.services.intake import (
    decide_upload,
    receive_upload,
    sweep_uploads,
    wait_for_upload,
)
from marketplace.jobs.services.life import (
    add_job_event,
    cancel_job,
    check_pausable,
    fail_job,
    give_prepared_data,
    mark_job_settled,
    replace_job_cells,
    request_job_replan,
    withdraw_start,
)
from marketplace.jobs.services.opening import Opening, open_jobs
from marketplace.jobs.services.parts import (
    add_part,
    cancel_parted_upload,
    complete_parted_upload,
    open_parted_upload,
    sweep_parted_uploads,
)
from marketplace.jobs.services.progress import record_progress
from marketplace.jobs.services.slices import (
    SliceOutcome,
    answer_turn,
    apply_heartbeat,
    discard_node_work,
    finish_slice,
    sweep_leases,
)
from marketplace.jobs.services.uploads import store_adapter, store_checkpoint
from marketplace.jobs.services.user_faults import decide_user_fault

__all__ = [
    "LeaseLost",
    "Opening",
    "SliceOutcome",
    "add_job_event",
    "add_part",
    "answer_turn",
    "apply_heartbeat",
    "cancel_job",
    "cancel_parted_upload",
    "check_held_out",
    "check_pausable",
    "complete_parted_upload",
    "decide_upload",
    "decide_user_fault",
    "delete_adapter",
    "delete_all_of",
    "delete_checkpoint_models",
    "delete_dataset",
    "delete_job",
    "delete_unretained",
    "discard_node_work",
    "dispatch_slots",
    "ensure_dataset_tokens",
    "fail_job",
    "finish_slice",
    "give_prepared_data",
    "hand_out_plans",
    "is_dataset_counted",
    "is_held_out_checked",
    "mark_job_settled",
    "note_adapter_use",
    "open_jobs",
    "open_parted_upload",
    "receive_upload",
    "record_progress",
    "replace_job_cells",
    "request_job_replan",
    "store_adapter",
    "store_checkpoint",
    "sweep_leases",
    "sweep_parted_uploads",
    "sweep_uploads",
    "wait_for_upload",
    "withdraw_start",
]
