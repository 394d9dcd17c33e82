"""Who changed a row, for the rows that keep their history."""

from typing import Any

from django.http import HttpRequest
from pghistory.middleware import HistoryMiddleware

#: Nothing below these addresses changes a row that keeps its history, and naming the person in
#: every statement makes each of them slower.
WITHOUT = ("/api/", "/v1/", "/internal/")


class PeopleHistoryMiddleware(HistoryMiddleware):
    def __call__(self, request: HttpRequest) -> Any:
        if request.path.startswith(WITHOUT):
            return self.get_response(request)
        return super().__call__(request)
