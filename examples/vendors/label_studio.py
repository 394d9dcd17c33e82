"""Label Studio as an outside vendor: rows become tasks, people's answers come back.

    pip install label-studio-sdk
    python label_studio.py pull DATA_URL --people 2
    python label_studio.py push DATA_URL DELIVERY_URL PROJECT

Reads LABEL_STUDIO_URL, LABEL_STUDIO_API_KEY and VENDOR_SECRET, which is on the vendor's page.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
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

KEEP, LEAVE_OUT = "Keep", "Leave out"
#: What people see: what is asked, the answer to correct, and whether the row is fit.
CONFIG = f"""
<View>
  <Header value="What is asked"/>
  <Text name="asked" value="$asked"/>
  <Header value="The answer, to correct"/>
  <TextArea name="told" toName="asked" editable="true" maxSubmissions="1" rows="8"/>
  <Choices name="fit" toName="asked" choice="single" showInline="true">
    <Choice value="{KEEP}"/>
    <Choice value="{LEAVE_OUT}"/>
  </Choices>
</View>
"""


def build_task(item: Item) -> dict[str, Any]:
    """A row as a task, with its answer as the prediction that people correct."""
    said = {"from_name": "told", "to_name": "asked", "type": "textarea"}
    result = [{**said, "value": {"text": [item.told]}}] if item.told else []
    return {
        "data": {"row_id": item.row_id, "asked": item.asked, "told": item.told},
        "predictions": [{"model_version": "as found", "result": result}],
    }


def read_answers(tasks: Iterable[Mapping[str, Any]]) -> dict[int, list[Answer]]:
    """What people said of each row, of tasks as Label Studio exports them as JSON."""
    answers: dict[int, list[Answer]] = {}
    for task in tasks:
        said = [
            _read_result(annotation["result"], task["data"]["told"])
            for annotation in task["annotations"]
            if not annotation.get("was_cancelled")
        ]
        answers[task["data"]["row_id"]] = said
    return answers


def _read_result(result: Iterable[Mapping[str, Any]], found: str) -> Answer:
    values = {part["from_name"]: part["value"] for part in result}
    if values.get("fit", {}).get("choices") == [LEAVE_OUT]:
        return Answer(None)
    texts = values.get("told", {}).get("text") or [found]
    return Answer("\n".join([texts] if isinstance(texts, str) else texts).strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("pull", "push"))
    parser.add_argument("data_url")
    parser.add_argument("delivery_url", nargs="?")
    parser.add_argument("project", nargs="?", type=int)
    parser.add_argument("--people", type=int, default=1, help="who answer each row")
    parser.add_argument("--guidelines", default="", help="the owner's instructions")
    asked = parser.parse_args()

    from label_studio_sdk import LabelStudio

    studio = LabelStudio(
        base_url=os.environ["LABEL_STUDIO_URL"], api_key=os.environ["LABEL_STUDIO_API_KEY"]
    )
    rows = fetch_rows(asked.data_url)
    if asked.do == "pull":
        project = studio.projects.create(
            title="Rows to prepare",
            label_config=CONFIG,
            expert_instruction=asked.guidelines,
            show_instruction=bool(asked.guidelines),
            maximum_annotations=asked.people,
        )
        tasks = [build_task(read_item(row)) for row in rows]
        studio.projects.import_tasks(id=project.id, request=tasks)
        print(f"Project {project.id} has {len(rows)} rows.")
        return
    answers = read_answers(studio.projects.exports.as_json(asked.project))
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
