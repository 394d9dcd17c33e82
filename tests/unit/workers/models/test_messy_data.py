"""The demo's messy data set: made by its recipe, and what a preparation makes of it."""

from __future__ import annotations

from workers.models.pretraining.messy_data import CLEAN_ROWS, MESSY, SOURCE, make_messy_rows
from workers.preparation import PreparationSettings, prepare_dataset


def test_the_messy_rows_are_those_of_the_recipe_and_hold_no_clean_row():
    text = make_messy_rows()
    assert MESSY.read_text("utf-8") == text
    clean = SOURCE.read_text("utf-8").splitlines()[-CLEAN_ROWS:]
    assert not set(clean) & set(text.splitlines())


def test_the_automatic_vendor_repairs_a_quarter_and_drops_what_says_nothing_new(tmp_path):
    with MESSY.open("rb") as stream:
        made = prepare_dataset(stream, tmp_path, PreparationSettings(validation_share=0.1)).summary
    assert (made.rows_in, made.rows_out, made.rows_held_out) == (526, 252, 28)
    assert made.changed == {"repair": 139}
    assert made.dropped == {"repair": 12, "filters": 24, "duplicates": 210}
