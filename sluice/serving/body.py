"""The body of a request: JSON by its declaration, whole, and in time."""

import asyncio

from fastapi import Request

from sluice.serving.admission import BodyReading
from sluice.serving.refusals import BodyLate, Malformed, WrongMedia
from sluice.serving.settings import ServingSettings


async def read_body(request: Request, *, settings: ServingSettings, reading: BodyReading) -> bytes:
    """Return the bytes of a body.

    A page of any origin may have a browser post a form or plain text here; JSON by declaration it
    may post only where the server says so beforehand (CORS), and this one never does.

    Args:
        request: Whose body is read.
        settings: Time and rate of a body.
        reading: Takes the memory.

    Raises:
        WrongMedia: It is not declared as JSON.
        BodyLate: It is not there after ``body_timeout_s`` [s], or comes at less than
            ``min_body_bytes_per_s`` after the first ``body_grace_s`` [s].
        Overloaded: Bodies that are being read take too much memory, and this one stalled.
        Malformed: The client left within it.
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
                    raise Malformed("The connection ended within the body.", fix="Send it whole.")
                chunk = message.get("body", b"")
                chunks.append(chunk)
                reading.grow(len(chunk))
                if not message.get("more_body", False):
                    return b"".join(chunks)
                earned_s = settings.body_grace_s + reading.num_bytes / settings.min_body_bytes_per_s
                limit.reschedule(began + min(earned_s, settings.body_timeout_s))
    except TimeoutError:
        if reading.is_ended:
            raise reading.refusal() from None
        raise BodyLate(
            f"The body must arrive within {settings.body_timeout_s:g} s, after the first "
            f"{settings.body_grace_s:g} s at {settings.min_body_bytes_per_s:,} bytes/s or more, "
            "and did not.",
            fix="Send it at once, or send fewer windows.",
        ) from None


def _require_json(request: Request) -> None:
    declared = request.headers.get("content-type", "")
    if declared.partition(";")[0].strip().lower() != "application/json":
        raise WrongMedia(
            "The body must be declared as application/json, and "
            + ("is as something else." if declared else "is not declared."),
            fix="Send the header 'Content-Type: application/json'.",
        )
