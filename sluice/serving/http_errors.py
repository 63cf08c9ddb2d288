"""Errors of requests, each with its HTTP status."""

from typing import Any, ClassVar

from sluice.base.errors import RequestRefused


class HttpError(RequestRefused):
    """Base class of all errors that become a response with the status and kind of their class."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal_error"
    retry_after_s: ClassVar[int | None] = None


class BadRequest(HttpError):
    """The body is not JSON, or is incomplete."""

    status, kind = 400, "malformed"


class Unauthorized(HttpError):
    """The bearer token is missing or wrong."""

    status, kind = 401, "unauthorized"


class Forbidden(HttpError):
    """The bearer token lacks the scope of the route."""

    status, kind = 403, "forbidden"


class UnknownModel(HttpError):
    """The request names a model that this server does not serve."""

    status, kind = 404, "unknown_model"


class BodyTimeout(HttpError):
    """The body did not arrive in time."""

    status, kind = 408, "body_timeout"


class PayloadTooLarge(HttpError):
    """The size of the body, or the number of its elements, exceeds a limit."""

    status, kind = 413, "too_large"


class UnsupportedMediaType(HttpError):
    """The body is not declared as JSON."""

    status, kind = 415, "unsupported_media_type"


class MisdirectedRequest(HttpError):
    """The Host header does not name this server."""

    status, kind = 421, "misdirected_request"


class InvalidInput(HttpError):
    """The content of the body is invalid, or the prediction from it is NaN or infinite."""

    status, kind = 422, "invalid_input"


class TooManyRequests(HttpError):
    """Requests arrive faster than the limit."""

    status, kind, retry_after_s = 429, "too_many_requests", 1


class ModelFailed(HttpError):
    """The production model or its codec raised an error."""

    status, kind = 500, "model_failed"

    def __init__(self, what: str, *, fix: str, cause: str, error_site: dict[str, Any]) -> None:
        super().__init__(what, fix=fix, cause=cause)
        self.error_site = error_site
        """Type and location of the error, for the log."""


class Overloaded(HttpError):
    """Too many predictions are in progress, or request bodies use too much memory."""

    status, kind, retry_after_s = 503, "overloaded", 1


class RollbackFailed(HttpError):
    """The rollback that an alert requested could not be executed, so nothing was changed."""

    status, kind, retry_after_s = 503, "rollback_failed", 1


class PredictionTimeout(HttpError):
    """The prediction did not finish before the deadline."""

    status, kind = 504, "prediction_timeout"


PREDICT_ERRORS: tuple[type[HttpError], ...] = (
    BadRequest,
    Unauthorized,
    Forbidden,
    UnknownModel,
    BodyTimeout,
    PayloadTooLarge,
    UnsupportedMediaType,
    MisdirectedRequest,
    InvalidInput,
    TooManyRequests,
    ModelFailed,
    Overloaded,
    PredictionTimeout,
)
"""Errors of /predict, for the OpenAPI description."""
