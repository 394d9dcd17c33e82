"""Small clouds in memory, shaped like the client libraries: skypilot 0.14.1, modal 1.6.4."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple


class InstanceTypeInfo(NamedTuple):
    """``sky.catalog.common.InstanceTypeInfo``."""

    cloud: str
    instance_type: str | None
    accelerator_name: str
    accelerator_count: float
    cpu_count: float | None
    device_memory: float | None
    memory: float | None
    price: float
    spot_price: float
    region: str


class ClusterStatus(enum.Enum):
    """``sky.ClusterStatus``."""

    INIT = "INIT"
    UP = "UP"
    STOPPED = "STOPPED"


class StatusRefreshMode(enum.Enum):
    """``sky.StatusRefreshMode``."""

    NONE = "NONE"
    AUTO = "AUTO"
    FORCE = "FORCE"


@dataclass
class Resources:
    """``sky.Resources``, the terms used."""

    infra: str | None = None
    accelerators: dict[str, int] | None = None
    image_id: str | None = None
    labels: dict[str, str] | None = None


@dataclass
class Task:
    """``sky.Task``, the terms used."""

    name: str | None = None
    run: str | None = None
    secrets: dict[str, str] | None = None
    resources: Resources | None = None


def listed(cloud: str, gpu: str, price: float, region: str = "region-1") -> InstanceTypeInfo:
    return InstanceTypeInfo(cloud, None, gpu, 1, 8, 40, 64, price, price / 2, region)


@dataclass
class SkyServer:
    """The API server behind ``sky.client.sdk``: a call makes a request, ``get`` its answer."""

    clouds: list[str] = field(default_factory=lambda: ["AWS", "Vast"])
    catalog: dict[str, list[InstanceTypeInfo]] = field(
        default_factory=lambda: {
            "A100": [
                listed("AWS", "A100", 4.1),
                listed("AWS", "A100", 3.6731, "us-east-1"),
                listed("Vast", "A100", float("nan")),
                listed("Vast", "A100", 0.74, ""),
                listed("GCP", "A100", 0.1),
            ]
        }
    )
    #: Clusters by name.
    clusters: dict[str, ClusterStatus] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    #: Requests not finished: id -> (name, cluster).
    open: dict[str, tuple[str, str]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    #: How often prices were asked for, and clusters launched and taken down.
    counts: dict[str, int] = field(default_factory=dict)
    is_away: bool = False

    def _request(self, name: str, answer: Any = None, *, cluster: str | None = None) -> str:
        if self.is_away:
            raise RuntimeError("Could not connect to SkyPilot API server.")
        self.counts[name] = self.counts.get(name, 0) + 1
        request_id = f"request-{sum(self.counts.values())}"
        self.answers[request_id] = answer
        if cluster is not None:
            self.open[request_id] = (name, cluster)
        return request_id

    def get(self, request_id: str) -> Any:
        return self.answers[request_id]

    def enabled_clouds(self, workspace: str | None = None, expand: bool = False) -> str:
        return self._request("enabled_clouds", self.clouds)

    def list_accelerators(
        self,
        gpus_only: bool = True,
        name_filter: str | None = None,
        region_filter: str | None = None,
        quantity_filter: int | None = None,
        clouds: list[str] | str | None = None,
    ) -> str:
        assert quantity_filter == 1
        found = {
            gpu: [one for one in rows if clouds is None or one.cloud.lower() in clouds]
            for gpu, rows in self.catalog.items()
        }
        return self._request("list_accelerators", found)

    def launch(self, task: Task, cluster_name: str | None = None) -> str:
        assert cluster_name is not None
        self.tasks[cluster_name] = task
        return self._request("launch", cluster=cluster_name)

    def provision(self) -> None:
        """Time passes: open requests are carried out."""
        for name, cluster in self.open.values():
            if name == "launch":
                self.clusters[cluster] = ClusterStatus.UP
            else:
                self.clusters.pop(cluster, None)
        self.open.clear()

    def status(
        self,
        cluster_names: list[str] | None = None,
        refresh: StatusRefreshMode = StatusRefreshMode.NONE,
        all_users: bool = False,
    ) -> str:
        rows = [
            SimpleNamespace(name=name, status=status)
            for name, status in self.clusters.items()
            if cluster_names is None or name in cluster_names
        ]
        return self._request("status", rows)

    def api_status(
        self, request_ids: list[str] | None = None, all_status: bool = False
    ) -> list[SimpleNamespace]:
        self._request("api_status")
        return [
            SimpleNamespace(request_id=key, name=f"sky.{name}", cluster_name=cluster)
            for key, (name, cluster) in self.open.items()
        ]

    def api_cancel(
        self, request_ids: list[str], all_users: bool = False, silent: bool = False
    ) -> str:
        for request_id in request_ids:
            del self.open[request_id]
        return self._request("api_cancel", request_ids)

    def down(self, cluster_name: str, purge: bool = False) -> str:
        return self._request("down", cluster=cluster_name)

    @property
    def sky(self) -> SimpleNamespace:
        """What module ``sky`` holds."""
        return SimpleNamespace(
            Task=Task,
            Resources=Resources,
            ClusterStatus=ClusterStatus,
            StatusRefreshMode=StatusRefreshMode,
        )


class ModalError(Exception):
    """``modal.exception.Error``."""


class AlreadyExistsError(ModalError):
    """``modal.exception.AlreadyExistsError``."""


class ModalConnectionError(ModalError):
    """``modal.exception.ConnectionError``."""


@dataclass
class ModalSandbox:
    """One container; ``terms`` is what it was created with."""

    command: tuple[str, ...]
    app: SimpleNamespace
    terms: dict[str, Any]
    is_running: bool = True

    def get_tags(self) -> dict[str, str]:
        return dict(self.terms["tags"])

    def terminate(self, *, wait: bool = False) -> int | None:
        self.is_running = False
        return None


@dataclass(frozen=True)
class ModalImage:
    tag: str
    command_before: tuple[str, ...] = ("python", "-m", "workers")

    def entrypoint(self, entrypoint_commands: list[str]) -> ModalImage:
        return ModalImage(self.tag, tuple(entrypoint_commands))


@dataclass
class ModalCloud:
    """What module ``modal`` holds, over one account."""

    sandboxes: list[ModalSandbox] = field(default_factory=list)
    is_away: bool = False

    @property
    def module(self) -> SimpleNamespace:
        return SimpleNamespace(
            App=SimpleNamespace(lookup=self._lookup),
            Sandbox=SimpleNamespace(create=self._create, list=self._list),
            Image=SimpleNamespace(from_registry=ModalImage),
            Secret=SimpleNamespace(from_dict=dict),
            exception=SimpleNamespace(Error=ModalError, AlreadyExistsError=AlreadyExistsError),
        )

    def _lookup(self, name: str, *, create_if_missing: bool = False) -> SimpleNamespace:
        if self.is_away:
            raise ModalConnectionError("Could not connect to the Modal server.")
        assert create_if_missing
        return SimpleNamespace(name=name, app_id=f"ap-{name}")

    def _create(
        self,
        *args: str,
        app: SimpleNamespace,
        name: str,
        tags: dict[str, str],
        image: ModalImage,
        workdir: str,
        secrets: list[dict[str, str]],
        gpu: str,
        timeout: int,
    ) -> ModalSandbox:
        if any(one.terms["name"] == name for one in self._list(app_id=app.app_id, tags={})):
            raise AlreadyExistsError(f"Sandbox {name!r} is there.")
        terms = {"name": name, "tags": tags, "image": image, "secrets": secrets, "gpu": gpu}
        self.sandboxes.append(
            ModalSandbox(args, app, {**terms, "workdir": workdir, "timeout": timeout})
        )
        return self.sandboxes[-1]

    def _list(self, *, app_id: str, tags: dict[str, str]) -> Iterator[ModalSandbox]:
        for one in self.sandboxes:
            tagged = tags.items() <= one.get_tags().items()
            if one.is_running and one.app.app_id == app_id and tagged:
                yield one
