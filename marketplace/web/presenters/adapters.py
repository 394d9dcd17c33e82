"""An adapter's page: how it is served, what it was used for and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Sum

from marketplace.exports.models import Export, ExportStatus, HubPush
from marketplace.exports.selectors import ExportChoice, list_export_choices, list_pushes
from marketplace.jobs.models import ErrandState, Job
from marketplace.jobs.serving_lines import ServingLine, list_serving_lines
from marketplace.questions.prices import find_rate


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """What came of an adapter, and what more of it costs now."""

    export_choices: list[ExportChoice]
    pushes: list[HubPush]
    #: Files that were made and paid.
    exports: int
    exports_micros: int
    #: Micro-dollars for a million tokens, read or written; ``None``: no node is online.
    rate_micros: int | None

    @property
    def is_being_made(self) -> bool:
        """Whether the page will change by itself."""
        waiting = (ExportStatus.WAITING, ExportStatus.ASKED)
        exports = [choice.export for choice in self.export_choices]
        return any(export is not None and export.status in waiting for export in exports) or any(
            push.finished_at is None for push in self.pushes
        )


def describe_use(job: Job) -> AdapterUse:
    """Say what was made of a job's adapter and what it costs to ask it."""
    made = Export.objects.filter(job=job, artifact__checkpoint=None, state=ErrandState.DONE)
    paid = made.aggregate(count=Count("pk"), micros=Sum("price_micros"))
    return AdapterUse(
        export_choices=list_export_choices(job),
        pushes=list_pushes(job),
        exports=paid["count"],
        exports_micros=paid["micros"] or 0,
        rate_micros=find_rate(job.zone),
    )


def list_ways_to_serve(job: Job, use: AdapterUse, *, market_url: str) -> list[ServingLine]:
    """Say how a program asks the adapter: here, and with servers of others."""
    here = (
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{market_url}/v1", api_key="ft_...")\n'
        "answer = client.chat.completions.create(\n"
        f'    model="ft:{job.pk}",\n'
        '    messages=[{"role": "user", "content": "Hello"}],\n'
        ")\n"
        "print(answer.choices[0].message.content)"
    )
    needs = "A key that may use models, from the page of API keys."
    return [
        ServingLine("This market", here, needs),
        *list_serving_lines(job, is_mergeable=bool(use.export_choices)),
    ]
