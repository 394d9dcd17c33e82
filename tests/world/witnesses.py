"""Witnesses of the log: one keeps what it gets, others lose answers, die, or lie about it."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command

from marketplace.auction.witnesses import heads
from tests.audits import replay_transcript
from tests.world.actors import Actor, Turn
from tests.world.world import World

HONEST, FORGETFUL, BROKEN = "https://honest/", "https://forgetful/", "https://broken/"
PUBLISH = "auction.publish_heads"


class Witnesses(Actor):
    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        super().__init__(world, patch)
        #: Of each witness, the heads that it was given: by log and position.
        self.kept: dict[str, dict[tuple[str, int], str]] = defaultdict(dict)
        self.is_settling = False
        patch.setattr(settings, "AUCTION_WITNESSES", [BROKEN, FORGETFUL, HONEST])
        patch.setattr(heads, "deliver", self.take)

    def list_turns(self) -> Sequence[Turn]:
        return ((5, "heads are published", lambda: self.world.run_task(PUBLISH)),)

    def take(self, lines: Sequence[str], *, witness: str) -> None:
        """Take heads as a witness does: wholly, in part, or in silence."""
        draw = 1.0 if self.is_settling else self.world.rng.random()
        if draw < 0.15:
            raise heads.WitnessFailed(f"{witness} does not answer")
        if witness == BROKEN and draw < 0.5:
            raise ValueError("what it says is no HTTP")
        kept = lines[: len(lines) // 2] if draw < 0.3 else lines
        for line in kept:
            head = json.loads(line)
            place = (head["zone"], head["position"])
            for of_another in self.kept.values():
                # Nobody is shown another history than the others were.
                assert of_another.get(place, line) == line, place
            self.kept[witness][place] = line
        if draw < 0.3 or (witness == FORGETFUL and draw < 0.6):
            raise heads.WitnessFailed(f"{witness} took them and the answer was lost")

    def settle(self) -> None:
        self.is_settling = True

    def check_rest(self) -> None:
        """Whatever the others did, the honest one has what the log is held to."""
        heads.sign_heads(now=self.world.now)
        zone = self.world.zone
        last = heads.list_signed_heads(zone=zone)[-1]
        # Past the pauses after failures.
        heads.publish_heads(now=self.world.now + heads.RETRY_MOST)
        for witness in settings.AUCTION_WITNESSES:
            assert last in self.kept[witness].values(), f"{witness} was not given the last head"
        kept = list(self.kept[HONEST].values())
        # One that lies about what it was given vouches for nothing.
        lie = json.dumps(json.loads(last) | {"hash": "0" * 64})
        with tempfile.TemporaryDirectory() as directory:
            log, seen = Path(directory) / "zone.jsonl", Path(directory) / "heads.jsonl"
            call_command("auction_transcript", zone=zone.name, out=log, stdout=StringIO())
            for lines, accepted in ((kept, True), ([*kept[:-1], lie], False)):
                seen.write_text("\n".join(lines) + "\n")
                done = replay_transcript(log, "--witness", str(seen))
                assert (done.returncode == 0) == accepted, done.stdout + done.stderr

    def describe(self) -> str:
        return f"heads at witnesses {sum(map(len, self.kept.values()))}"
