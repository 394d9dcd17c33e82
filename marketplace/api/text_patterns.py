"""Regular expressions of texts in requests, for the OpenAPI documents and the fields that check.

They mean the same in ECMA-262, which JSON Schema uses, and in Python, but for a line feed after
``$``: Python's ``fullmatch`` is to be used.
"""

from __future__ import annotations

from marketplace.common.ids import ID_PATTERN

#: PostgreSQL takes no NUL in a text.
NO_NUL = r"^[^\u0000]*$"
#: Something is left once the spaces around it are taken away.
NOT_BLANK = r"^[^\u0000]*[^\s\u0000\u001c-\u001f\u0085][^\u0000]*$"
#: As people have them; whether there is such a mailbox only a mail tells.
_HOST = r"([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]{2,24}"
EMAIL = rf"^[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@{_HOST}$"
HTTPS_URL = rf"^https://{_HOST}(:[1-9][0-9]{{0,3}})?(/[!-~]*)?$"
#: One that more of a path may be put behind.
HTTPS_ROOT = rf"^https://{_HOST}(:[1-9][0-9]{{0,3}})?(/[!-\"$->@-~]*)?$"
PRINTABLE_ASCII = r"^[ -~]+$"
#: The same without spaces.
VISIBLE_ASCII = r"^[!-~]+$"
#: An id of any kind of row.
ID = f"^{ID_PATTERN}$"
