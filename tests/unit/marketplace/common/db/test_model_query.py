"""Objects that a text of our own reads are those that the ORM reads."""

from __future__ import annotations

import pytest
from django.db.models import Model
from django.forms import model_to_dict

from marketplace.fleet.queries import find_zones_by_name
from marketplace.jobs.models import Dataset
from marketplace.jobs.queries import find_datasets
from marketplace.payments.freezes import freeze_organisation
from marketplace.payments.queries import find_limits
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def columns(row: Model) -> dict[str, object]:
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def test_a_zone_and_a_data_set_have_the_values_and_types_that_the_orm_gives() -> None:
    zone = market.zone()
    owner = builders.organisation()
    dataset = market.dataset(owner, zone)
    Dataset.objects.update(faulty_lines=[3, 4], errors=[{"line": 3, "problem": "“½”"}])
    zone.refresh_from_db()
    dataset.refresh_from_db()
    [found_zone] = find_zones_by_name([zone.name, "no-such-zone"])
    [found] = find_datasets(ids=[dataset.pk, "ds_none"])
    assert (found_zone, columns(found_zone)) == (zone, columns(zone))
    assert (found, columns(found)) == (dataset, columns(dataset))
    assert isinstance(found_zone.model_shape, dict)
    assert model_to_dict(found) == model_to_dict(dataset)
    assert found.file.name == dataset.file.name
    # It is stored already: saving it again is an update.
    found.name = "renamed"
    found.save(update_fields=["name"])
    assert Dataset.objects.get().name == "renamed"


def test_a_withheld_data_set_is_not_found() -> None:
    dataset = market.dataset(builders.organisation(), market.zone())
    Dataset.everything.update(is_withheld=True)
    assert find_datasets(ids=[dataset.pk]) == []


def test_freezes_that_ended_and_other_organisations_limit_no_one() -> None:
    one, other = builders.organisation(), builders.organisation()
    freeze = freeze_organisation(
        organisation_id=one.pk, reference="cb_1", reason="A chargeback is open.", now=NOW
    )
    assert find_limits([one.pk, other.pk]) == ([freeze], [])
    assert find_limits([other.pk]) == ([], [])
    assert find_limits([]) == ([], [])
    freeze.ended_at = NOW
    freeze.save()
    assert find_limits([one.pk]) == ([], [])
