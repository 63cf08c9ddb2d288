"""Body of a prediction request: the fields that every codec shares, and how errors are described.

An element is what one prediction is made from: a window, a text, an image.
"""

import difflib
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Control characters are not allowed in row keys; PostgreSQL rejects text with NUL."""

_MAX_DESCRIBED_ERRORS = 100
"""Maximum number of described errors of a body. Only unknown keys can cause more errors."""

_MAX_COMPARED_LENGTH = 100
"""Maximum length of an unknown key that is compared with the fields [characters]: the comparison
of a key of megabytes would block the server."""


def _require_printable(key: str) -> str:
    match = _CONTROL_CHARACTERS.search(key)
    if match is not None:
        raise ValueError(f"must contain no control characters, got one at {match.start()}")
    return key


RowKey = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_require_printable)]


class CodecRequest(BaseModel):
    """Fields of every request. The class of a codec adds the field with the elements."""

    model_config = ConfigDict(extra="forbid", strict=True)

    elements_field: ClassVar[str]
    """Name of the field with the elements, a list."""

    model: str | None = Field(
        None,
        max_length=200,
        description="Name of the model. If given, the request is refused if the server serves "
        "another model.",
    )
    user: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="User key. During a rollout the same user always gets the same arm. Without "
        "it, the arm is drawn at random for every request.",
    )
    keys: Annotated[list[RowKey], Field(fail_fast=True)] | None = Field(
        None,
        description="Index label of each element's row, as in the features table. With it, the "
        "predictions can be evaluated once the targets are known. Must not contain control "
        "characters.",
    )

    @property
    def elements(self) -> Sequence[Any]:
        """Elements of the request, one for each prediction."""
        elements: Sequence[Any] = getattr(self, self.elements_field)
        return elements


def describe_invalid(error: ValidationError, request_type: type[CodecRequest]) -> str:
    """Return one sentence that names the invalid keys of a body, and never their values.

    Args:
        error: Error of the validation.
        request_type: Class of the request, whose fields are suggested for similar unknown keys.
    """
    if error.error_count() > _MAX_DESCRIBED_ERRORS:
        return f"The body has {error.error_count()} errors, most of them unknown keys."
    errors = error.errors(include_input=False, include_url=False)
    details = "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}"[:200]
        + _suggest_field(problem, request_type)
        for problem in errors[:5]
    )
    return (
        f"{len(errors)} {'value' if len(errors) == 1 else 'values'} of the body "
        f"{'is' if len(errors) == 1 else 'are'} wrong: {details}."
    )


def describe_fields(request_type: type[CodecRequest]) -> str:
    """Return which fields a body must have, and which it may have, in one sentence."""
    required_fields = [
        name for name, field in request_type.model_fields.items() if field.is_required()
    ]
    optional_fields = [name for name in request_type.model_fields if name not in required_fields]
    return (
        f"A request to this model has {', '.join(map(repr, required_fields))}, and optionally "
        f"{', '.join(map(repr, optional_fields))}."
    )


def _suggest_field(problem: ErrorDetails, request_type: type[CodecRequest]) -> str:
    """Return " (did you mean 'x'?)" if a key is unknown, but similar to a field; otherwise ""."""
    name = problem["loc"][-1] if problem["type"] == "extra_forbidden" else None
    is_short = isinstance(name, str) and len(name) <= _MAX_COMPARED_LENGTH
    if not is_short or len(problem["loc"]) > 1:
        return ""
    matches = difflib.get_close_matches(str(name), request_type.model_fields, n=1, cutoff=0.7)
    return f" (did you mean '{matches[0]}'?)" if matches else ""
