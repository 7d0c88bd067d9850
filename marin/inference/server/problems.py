"""Errors in the shape that OpenAI's clients understand."""

import json
from typing import Any

from starlette.responses import JSONResponse, Response


class ProblemError(Exception):
    """A request that is refused.

    Args:
        param: the field that is wrong, if it is one.
        code: a short name that programs can test.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {"retry-after": "1"} if self.status in (429, 503) else None
        return JSONResponse(self.body(), self.status, headers)

    def event(self) -> str:
        """As an event of a stream that has begun."""
        return f"data: {json.dumps(self.body())}\n\n"
