"""Scripts and management commands of tests, in the environment of a running market."""

from __future__ import annotations

from dataclasses import dataclass

from marketplace.embedded.house import House


@dataclass(frozen=True, slots=True)
class MarketShell:
    """Runs scripts and management commands one after the other; says what they printed."""

    house: House

    def run(self, script: str) -> str:
        """Run a script."""
        return self.manage("shell", "--no-imports", "--command", script)

    def manage(self, *command: str) -> str:
        """Run a management command."""
        return self.house.manage(*command).strip()
