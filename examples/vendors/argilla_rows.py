"""Argilla as an outside vendor: rows become records, people's responses come back.

    pip install argilla
    python argilla_rows.py pull DATA_URL NAME --people 2
    python argilla_rows.py push DATA_URL NAME DELIVERY_URL

Reads ARGILLA_URL, ARGILLA_API_KEY and VENDOR_SECRET, which is on the vendor's page.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import Any

from work_link import (
    Answer,
    Item,
    deliver,
    fetch_rows,
    iter_delivered,
    measure_agreement,
    read_item,
)

KEEP, LEAVE_OUT = "keep", "leave_out"


def build_settings(rg: Any, client: Any, *, guidelines: str, people: int) -> Any:
    """What people see of a record, and what they are asked."""
    return rg.Settings(
        guidelines=guidelines or None,
        fields=[rg.TextField("asked", title="What is asked", client=client)],
        questions=[
            rg.TextQuestion("told", title="The answer, to correct", client=client),
            rg.LabelQuestion(
                "fit", labels=[KEEP, LEAVE_OUT], title="Is the row fit to learn?", client=client
            ),
        ],
        metadata=[rg.IntegerMetadataProperty("row_id", client=client)],
        distribution=rg.TaskDistribution(min_submitted=people),
    )


def build_record(rg: Any, item: Item) -> Any:
    """A row as a record, with its answer as the suggestion that people correct."""
    return rg.Record(
        id=str(item.row_id),
        fields={"asked": item.asked or "(nothing)"},
        metadata={"row_id": item.row_id},
        suggestions=[rg.Suggestion("told", item.told)] if item.told else [],
    )


def read_answers(records: Iterable[Any]) -> dict[int, list[Answer]]:
    """What people said of each row, of records with their submitted responses."""
    answers: dict[int, list[Answer]] = {}
    for record in records:
        told: dict[Any, str] = {}
        left_out: set[Any] = set()
        people: list[Any] = []
        for response in record.responses:
            if response.status != "submitted":
                continue
            if response.user_id not in people:
                people.append(response.user_id)
            if response.question_name == "told":
                told[response.user_id] = response.value.strip()
            elif response.value == LEAVE_OUT:
                left_out.add(response.user_id)
        answers[int(record.metadata["row_id"])] = [
            Answer(None if who in left_out else told[who]) for who in people
        ]
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("pull", "push"))
    parser.add_argument("data_url")
    parser.add_argument("name", help="of the data set in Argilla")
    parser.add_argument("delivery_url", nargs="?")
    parser.add_argument("--people", type=int, default=1, help="who answer each row")
    parser.add_argument("--guidelines", default="", help="the owner's instructions")
    asked = parser.parse_args()

    import argilla as rg

    client = rg.Argilla(api_url=os.environ["ARGILLA_URL"], api_key=os.environ["ARGILLA_API_KEY"])
    rows = fetch_rows(asked.data_url)
    if asked.do == "pull":
        settings = build_settings(rg, client, guidelines=asked.guidelines, people=asked.people)
        dataset = rg.Dataset(asked.name, settings=settings, client=client).create()
        dataset.records.log([build_record(rg, read_item(row)) for row in rows])
        print(f"{asked.name} has {len(rows)} rows.")
        return
    dataset = client.datasets(asked.name)
    answers = read_answers(dataset.records(with_responses=True))
    agreement = measure_agreement(answers.values())
    if agreement is not None:
        print(f"Where several people answered, {agreement:.0%} said the same.")
    print(
        deliver(
            asked.delivery_url,
            iter_delivered(rows, answers),
            secret=os.environ["VENDOR_SECRET"],
        )
    )


if __name__ == "__main__":
    main()
