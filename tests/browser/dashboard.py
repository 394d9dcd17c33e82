"""A picture of what ``docker/prometheus/dashboard.json`` shows of a running house.

Grafana itself is not installed for it. Prometheus (Debian's package) scrapes the house and answers
each panel's own expression, and the panels are drawn in their order; only colours and lines are
not Grafana's.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from marketplace.embedded.house import ROOT, House
from marketplace.embedded.servers import find_free_port
from tests.waiting import until

PROMETHEUS = shutil.which("prometheus")
DASHBOARD = ROOT / "docker" / "prometheus" / "dashboard.json"
RULES = DASHBOARD.with_name("alerts.yml")
EVERY_S = 5
COLUMNS = 3
#: Of a legend; the others are as in Grafana found by scrolling.
NAMED = 5
CAPTION = (
    "Panels of docker/prometheus/dashboard.json, drawn from Prometheus' answers of a running house;"
    " not a picture of Grafana"
)


@contextmanager
def run_prometheus(running: House, folder: Path) -> Iterator[str]:
    """Scrape a house under our rules; Prometheus' address."""
    assert PROMETHEUS is not None
    port = find_free_port()
    scraped = {
        "job_name": "finetender",
        "authorization": {"credentials": running.environment["METRICS_TOKEN"]},
        "static_configs": [{"targets": [running.url.removeprefix("http://")]}],
    }
    settings = {
        "global": {"scrape_interval": f"{EVERY_S}s", "evaluation_interval": f"{EVERY_S}s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [scraped],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(settings))
    command = (
        *(PROMETHEUS, f"--config.file={file}", f"--storage.tsdb.path={folder / 'series'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"),
    )
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(command)
    try:
        until(lambda: query(url, 'up{job="finetender"} == 1'), what="it is scraped", every_s=1)
        yield url
    finally:
        process.terminate()
        process.wait()


def query(url: str, expression: str) -> list[Any]:
    try:
        answer = httpx.get(f"{url}/api/v1/query", params={"query": expression}, timeout=30)
    except httpx.TransportError:
        return []
    return answer.json()["data"]["result"] if answer.is_success else []


def query_range(url: str, expression: str, *, since_s: float) -> list[Any]:
    now = time.time()
    asked = {"query": expression, "start": now - since_s, "end": now, "step": EVERY_S}
    answer = httpx.get(f"{url}/api/v1/query_range", params=asked, timeout=60).raise_for_status()
    return answer.json()["data"]["result"]


def draw_dashboard(url: str, file: Path, *, since_s: float = 900.0) -> Path:
    """Draw all panels over the seconds before now; the file."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    panels = json.loads(DASHBOARD.read_text())["panels"]
    rows = math.ceil(len(panels) / COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(15, 2.3 * rows), layout="constrained")
    figure.suptitle(CAPTION, fontsize=10)
    for panel, axis in zip(panels, axes.flat, strict=False):
        axis.set_title(panel["title"], fontsize=9, loc="left")
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
        [target] = panel["targets"]
        found = query_range(url, target["expr"], since_s=since_s)
        for series in found:
            at, values = zip(*series["values"], strict=True)
            minutes = [(moment - time.time()) / 60 for moment in at]
            label = fill_legend(target["legendFormat"], series["metric"])
            axis.plot(minutes, [float(value) for value in values], label=label, linewidth=1)
        if found:
            handles, labels = axis.get_legend_handles_labels()
            axis.legend(handles[:NAMED], labels[:NAMED], fontsize=6, loc="upper left")
        else:
            axis.text(0.5, 0.5, "none", transform=axis.transAxes, ha="center", fontsize=8)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.supxlabel("minutes from now", fontsize=8)
    figure.savefig(file, dpi=60)
    plt.close(figure)
    return file


def fill_legend(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{\s*(\w+)\s*}}", lambda name: labels.get(name[1], ""), text) or "all"
