"""Look the packages of constraints.txt up in an index of advisories, where one answers.

Ends with 1 where a package has a known vulnerability. Where no index answers it says so, names how
many packages were not looked up, and ends with 0: the change is not at fault.
"""

from __future__ import annotations

import json
import subprocess
import sys

_COMMAND = (
    *(sys.executable, "-m", "pip_audit", "--requirement", "constraints.txt", "--no-deps"),
    *("--disable-pip", "--progress-spinner", "off", "--timeout", "10", "--format", "json"),
)


def main() -> int:
    done = subprocess.run(_COMMAND, check=False, capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        said = done.stderr.strip().rpartition("\n")[2]
        print(f"No index of advisories answers: nothing was looked up ({said[:200]}).")
        return 0
    skipped = [one["name"] for one in packages if "skip_reason" in one]
    print(f"{len(packages) - len(skipped)} of {len(packages)} packages were looked up.")
    if len(skipped) == len(packages):
        print("No index of advisories answers for any of them.")
    elif skipped:
        print(f"Not known there: {', '.join(skipped)}.")
    bad = [(one, vulnerability) for one in packages for vulnerability in one.get("vulns", ())]
    for one, vulnerability in bad:
        fixed = ", ".join(vulnerability["fix_versions"]) or "none yet"
        print(f"{one['name']} {one['version']}: {vulnerability['id']}; fixed in: {fixed}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
