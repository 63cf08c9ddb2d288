"""Reads the body of a request: declared as JSON, complete, and in time."""

import asyncio

from fastapi import Request

from sluice.serving.admission import BodyReading
from sluice.serving.http_errors import BadRequest, BodyTimeout, UnsupportedMediaType
from sluice.serving.settings import ServingSettings


async def read_body(
    request: Request, *, settings: ServingSettings, body_reading: BodyReading
) -> bytes:
    """Return the bytes of a body.

    Requiring JSON prevents cross-site request forgery. A browser posts a form or plain text for a
    page of any origin. It posts JSON only after a CORS preflight, which this server never permits.

    Args:
        request: The request.
        settings: Time limit and minimum rate of a body.
        body_reading: Accounts for the memory of the body.

    Raises:
        UnsupportedMediaType: The body is not declared as JSON.
        BodyTimeout: The body is incomplete after ``body_timeout_s`` [s], or is slower than
            ``min_body_bytes_per_s`` after the first ``body_grace_s`` [s].
        Overloaded: Bodies that are being read use too much memory, and this body is stalled or
            gets no more memory.
        BadRequest: The client disconnected before the end of the body.
    """
    _require_json(request)
    chunks: list[bytes] = []
    try:
        async with asyncio.timeout(min(settings.body_grace_s, settings.body_timeout_s)) as timeout:
            loop = asyncio.get_running_loop()
            started_at = loop.time()
            body_reading.on_evict = lambda: timeout.reschedule(loop.time())
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise BadRequest(
                        "The connection ended before the body was complete.",
                        fix="Send the whole body.",
                    )
                chunk = message.get("body", b"")
                chunks.append(chunk)
                body_reading.grow(len(chunk))
                if not message.get("more_body", False):
                    return b"".join(chunks)
                min_rate_duration_s = body_reading.num_bytes / settings.min_body_bytes_per_s
                max_duration_s = min(
                    settings.body_grace_s + min_rate_duration_s, settings.body_timeout_s
                )
                timeout.reschedule(started_at + max_duration_s)
    except TimeoutError:
        if body_reading.is_evicted:
            raise body_reading.overloaded_error() from None
        raise BodyTimeout(
            f"The body did not arrive in time: within {settings.body_timeout_s:g} s, and at "
            f"{settings.min_body_bytes_per_s:,} bytes/s or more after the first "
            f"{settings.body_grace_s:g} s.",
            fix="Send the body without pauses, or send a smaller body.",
        ) from None


def _require_json(request: Request) -> None:
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType(
            "The body must be declared as application/json, but "
            + ("has another content type." if content_type else "has no content type."),
            fix="Send the header 'Content-Type: application/json'.",
        )
