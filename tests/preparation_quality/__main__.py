"""Print the tables of ``docs/algorithms/preparation.md``."""

from __future__ import annotations

from tests.preparation_quality.duplicate_rows import (
    compute_precision_and_recall,
    measure_duplicates,
)
from tests.preparation_quality.personal_data import measure_personal_data

SEED = 20_261_127
#: The curve: from which similarity of word triples two sides are nearly the same.
SIMILARITIES = (0.95, 0.85, 0.75, 0.65, 0.55, 0.5)


def main() -> None:
    rows = measure_duplicates(seed=SEED)
    print("| pairs | the same | taken for the same |\n|--|--|--|")
    for each in rows:
        is_same = "yes" if each.is_same else "no"
        print(f"| {each.name} | {is_same} | {each.found} of {each.pairs} |")
    precision, recall = compute_precision_and_recall(rows)
    print(f"\nPrecision {precision:.3f}, recall {recall:.3f}.\n")
    print("| similarity of two long sides from | precision | recall |\n|--|--|--|")
    for similarity in SIMILARITIES:
        found = measure_duplicates(seed=SEED, similarity=similarity)
        precision, recall = compute_precision_and_recall(found)
        print(f"| {similarity:.2f} | {precision:.3f} | {recall:.3f} |")
    print()
    print("| planted | found |\n|--|--|")
    found = measure_personal_data(seed=SEED)
    for each in found:
        if each.kind is not None:
            print(f"| {each.name} | {each.found} of {each.cases} |")
    print("\n| no personal data | taken for some |\n|--|--|")
    for each in found:
        if each.kind is None:
            print(f"| {each.name} | {each.found} of {each.cases} |")


if __name__ == "__main__":
    main()
