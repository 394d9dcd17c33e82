"""A container's health check: ``python docker/ask_health.py [PART]`` asks the market's web server.

It ends with 1 where the web server, or what it knows of a part (``lane``, ``worker``, ``beat``),
does not work. Its own name in the compose file's network is ``web``.
"""

import os
import sys
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

path = "/".join(["healthz", *sys.argv[1:]])
# A market answers under its own name alone.
host = urlsplit(os.environ["PUBLIC_URL"]).netloc
try:
    urlopen(Request(f"http://web:8000/{path}", headers={"Host": host}), timeout=8)
except OSError as error:
    sys.exit(f"{path}: {error}")
