"""Why a request is not answered, each with the HTTP status that says so."""

from typing import Any, ClassVar

from sluice.base.errors import RequestRefused


class Refusal(RequestRefused):
    """Base of all refusals; the class is the kind."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "broken"
    retry_after_s: ClassVar[int | None] = None


class Malformed(Refusal):
    """The body is no JSON."""

    status, kind = 400, "malformed"


class NotAuthorized(Refusal):
    """The bearer token is missing or wrong."""

    status, kind = 401, "not_authorized"


class NotAllowed(Refusal):
    """The bearer token has not the scope of the route."""

    status, kind = 403, "not_allowed"


class UnknownModel(Refusal):
    """The request names a model or version that is not served here."""

    status, kind = 404, "unknown_model"


class BodyLate(Refusal):
    """The body did not arrive in time."""

    status, kind = 408, "body_late"


class TooLarge(Refusal):
    """The body or the number of windows is beyond its limit."""

    status, kind = 413, "too_large"


class WrongMedia(Refusal):
    """The body is not declared as JSON."""

    status, kind = 415, "wrong_media"


class WrongHost(Refusal):
    """The Host header does not name this server."""

    status, kind = 421, "wrong_host"


class WrongInput(Refusal):
    """The body is JSON and breaks the input contract of the model."""

    status, kind = 422, "wrong_input"


class TooMany(Refusal):
    """Requests come faster than the limit."""

    status, kind, retry_after_s = 429, "too_many", 1


class ModelFailed(Refusal):
    """Production itself raised."""

    status, kind = 500, "model_failed"

    def __init__(self, what: str, *, fix: str, cause: str, place: dict[str, Any]) -> None:
        super().__init__(what, fix=fix, cause=cause)
        self.place = place
        """For the log: what was raised, and where."""


class Overloaded(Refusal):
    """Too many predictions are under way, or nothing is ready to answer."""

    status, kind, retry_after_s = 503, "overloaded", 1


class HookFailed(Refusal):
    """The registry could not be asked, or refused: nothing was rolled back."""

    status, kind, retry_after_s = 503, "hook_failed", 1


class TooLate(Refusal):
    """Production did not answer before the deadline."""

    status, kind = 504, "too_late"


REFUSALS: tuple[type[Refusal], ...] = (
    Malformed,
    NotAuthorized,
    NotAllowed,
    UnknownModel,
    BodyLate,
    TooLarge,
    WrongMedia,
    WrongHost,
    WrongInput,
    TooMany,
    ModelFailed,
    Overloaded,
    TooLate,
)
"""For the app's description of itself."""
