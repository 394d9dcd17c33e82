"""The protocol ages well: what earlier releases sent is read, and they read what is sent now."""

from __future__ import annotations

import json

import pytest

from tests.recorded_messages import FOLDER, build_old_reader, list_messages, read_as_now
from workers.protocol.joining import PROTOCOL_LEAST, choose_version
from workers.protocol.messages import PROTOCOL_VERSION
from workers.protocol.wire import from_json, to_json

#: Of the versions that this release still speaks.
SPOKEN = [f"v{version}" for version in range(PROTOCOL_LEAST, PROTOCOL_VERSION + 1)]
RECORDED = {version: json.loads((FOLDER / f"{version}.json").read_text()) for version in SPOKEN}


def known_part(value: object, now: object) -> object:
    """Of a recorded value, what the present release has as well."""
    if isinstance(value, dict) and isinstance(now, dict):
        return {key: known_part(value[key], now[key]) for key in value.keys() & now.keys()}
    if isinstance(value, list) and isinstance(now, list):
        return [known_part(old, new) for old, new in zip(value, now, strict=True)]
    return value


@pytest.mark.parametrize("version", SPOKEN)
def test_what_an_earlier_release_sent_is_read(version):
    recorded = RECORDED[version]["messages"]
    assert recorded.keys() <= list_messages().keys()
    for name, value in recorded.items():
        now = to_json(read_as_now(name, value))
        # Each value arrives as it was sent, in the fields that both know.
        assert known_part(value, now) == known_part(now, value)
        required = {
            field for field, said in RECORDED[version]["fields"][name].items() if said["required"]
        }
        assert required <= now.keys(), name


@pytest.mark.parametrize("version", SPOKEN)
def test_an_earlier_release_reads_what_is_sent_now(version):
    old = build_old_reader(RECORDED[version])
    for name, value in RECORDED[version]["messages"].items():
        sent = to_json(read_as_now(name, value)) | {"added_later": [1]}
        read = from_json(old[name], sent, ignores_unknown=True)
        assert type(read).__name__ == name


def test_a_message_that_changed_its_meaning_would_be_noticed():
    recorded = RECORDED[SPOKEN[-1]]
    old = build_old_reader(recorded)
    beat = recorded["messages"]["Heartbeat"]
    renamed = {("node" if key == "node_id" else key): value for key, value in beat.items()}
    with pytest.raises(ValueError, match="node_id is missing"):
        from_json(old["Heartbeat"], renamed, ignores_unknown=True)
    with pytest.raises(ValueError, match="at must be float"):
        from_json(old["Heartbeat"], beat | {"at": "noon"}, ignores_unknown=True)


@pytest.mark.parametrize(
    ("least", "most", "chosen"),
    [
        (PROTOCOL_LEAST, PROTOCOL_VERSION, PROTOCOL_VERSION),
        (1, PROTOCOL_VERSION + 5, PROTOCOL_VERSION),
        (PROTOCOL_LEAST, PROTOCOL_LEAST, PROTOCOL_LEAST),
        (1, PROTOCOL_LEAST - 1, None),
        (PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 2, None),
    ],
)
def test_two_sides_speak_the_newest_version_that_both_know(least, most, chosen):
    assert choose_version(least=least, most=most) == chosen
