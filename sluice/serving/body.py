"""Reads the body of a request: declared as JSON, complete, and in time."""

import asyncio

from fastapi import Request

from sluice.serving.admission import BodyReading
from sluice.serving.http_errors import BadRequest, BodyTimeout, UnsupportedMediaType
from sluice.serving.settings import ServingSettings


async def read_body(request: Request, *, settings: ServingSettings, reading: BodyReading) -> bytes:
    """Return the bytes of a body.

    A web page of any origin can make a browser post a form or plain text here. It can post
    declared JSON only where the server permits it beforehand (CORS), and this server never does.

    Args:
        request: The request.
        settings: Time limit and smallest rate of a body.
        reading: Accounts for the memory.

    Raises:
        UnsupportedMediaType: The body is not declared as JSON.
        BodyTimeout: It is incomplete after ``body_timeout_s`` [s], or arrives at less than
            ``min_body_bytes_per_s`` after the first ``body_grace_s`` [s].
        Overloaded: Bodies that are being read take too much memory, and this one stalled.
        BadRequest: The client disconnected before the end of the body.
    """
    _require_json(request)
    chunks: list[bytes] = []
    try:
        async with asyncio.timeout(min(settings.body_grace_s, settings.body_timeout_s)) as limit:
            loop = asyncio.get_running_loop()
            began = loop.time()
            reading.on_end = lambda: limit.reschedule(loop.time())
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise BadRequest(
                        "The connection ended before the body was complete.",
                        fix="Send the whole body.",
                    )
                chunk = message.get("body", b"")
                chunks.append(chunk)
                reading.grow(len(chunk))
                if not message.get("more_body", False):
                    return b"".join(chunks)
                earned_s = settings.body_grace_s + reading.num_bytes / settings.min_body_bytes_per_s
                limit.reschedule(began + min(earned_s, settings.body_timeout_s))
    except TimeoutError:
        if reading.is_ended:
            raise reading.error() from None
        raise BodyTimeout(
            f"The body must arrive within {settings.body_timeout_s:g} s, after the first "
            f"{settings.body_grace_s:g} s at {settings.min_body_bytes_per_s:,} bytes/s or more, "
            "and did not.",
            fix="Send the body without pauses, or with fewer windows.",
        ) from None


def _require_json(request: Request) -> None:
    declared = request.headers.get("content-type", "")
    if declared.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType(
            "The body must be declared as application/json, but "
            + ("has another content type." if declared else "has no content type."),
            fix="Send the header 'Content-Type: application/json'.",
        )
