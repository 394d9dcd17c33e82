"""What every address that OpenAI's clients call has in common."""

from __future__ import annotations

from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from marketplace.api.throttles import check_rate_limit
from marketplace.api.views import AlwaysJson, LastMemberParser, MarketView
from marketplace.common.errors import NotFound
from marketplace.common.problems import build_openai_error

#: The clients retry these statuses unless a header forbids it.
_RETRIED = (408, 409, 429)
_SHOULD_RETRY = "x-should-retry"


class OpenAiView(MarketView):
    """As ``MarketView``, with errors that OpenAI's clients read."""

    content_negotiation_class = AlwaysJson
    # As OpenAI does.
    takes_any_query = True
    parser_classes = [LastMemberParser]
    renderer_classes = [JSONRenderer]
    error_renderer = JSONRenderer

    def shape_error(self, response: Response) -> None:
        problem = response.data or {}
        is_useless = response.status_code == 409 and not problem.get("retry")
        if is_useless or response.status_code not in (*_RETRIED, *range(500, 600)):
            response[_SHOULD_RETRY] = "false"
        response.data = build_openai_error(problem)
        response.content_type = None


class UnknownOpenAiAddressView(OpenAiView):
    """Every other address below ``/v1/``."""

    authentication_classes = []
    permission_classes = []

    def run_method(self) -> Response:
        check_rate_limit(self.request)
        raise NotFound("unknown_url", f"There is nothing at {self.request.path}.")
