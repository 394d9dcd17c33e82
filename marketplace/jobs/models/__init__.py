"""Data sets, jobs, and everything that happened to them."""

from marketplace.jobs.models.datasets import (
    Dataset,
    DatasetTokens,
    HeldOutCheck,
    PartedStatus,
    PartedUpload,
    Upload,
    UploadPart,
    UploadStatus,
    dataset_path,
    upload_path,
)
from marketplace.jobs.models.errands import Errand, ErrandKind, ErrandState
from marketplace.jobs.models.job import Job, job_id
from marketplace.jobs.models.journal import EventFile, JobEvent, LossCurve, MetricPoint
from marketplace.jobs.models.prompts import CandidatePrompts
from marketplace.jobs.models.results import Artifact, Checkpoint, artifact_path, checkpoint_path
from marketplace.jobs.models.slices import NodePlan, Slice
from marketplace.jobs.models.states import EventKind, FaultOf, JobStatus, SliceStatus

__all__ = [
    "Artifact",
    "CandidatePrompts",
    "Checkpoint",
    "Dataset",
    "DatasetTokens",
    "Errand",
    "ErrandKind",
    "ErrandState",
    "EventFile",
    "EventKind",
    "FaultOf",
    "HeldOutCheck",
    "Job",
    "JobEvent",
    "JobStatus",
    "LossCurve",
    "MetricPoint",
    "NodePlan",
    "PartedStatus",
    "PartedUpload",
    "Slice",
    "SliceStatus",
    "Upload",
    "UploadPart",
    "UploadStatus",
    "artifact_path",
    "checkpoint_path",
    "dataset_path",
    "job_id",
    "upload_path",
]
