"""Prints what the clouds' clients need beside what pins them to an older web server.

SkyPilot names uvicorn and click of its own server, which the market does not run; both are here in
the market's versions. With them in the way pip finds no versions at all.
usage: python docker/cloud_requirements.py PACKAGE...   (installed without its requirements)
"""

import sys
from importlib.metadata import requires

from packaging.requirements import Requirement

THE_MARKETS_OWN = {"click", "uvicorn"}

for package in sys.argv[1:]:
    for line in requires(package) or ():
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        if wanted.name.lower() not in THE_MARKETS_OWN:
            print(line.partition(";")[0].strip())
