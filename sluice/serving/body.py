"""The body of a request: JSON by its declaration, whole, and in time."""

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from sluice.serving.refusals import BodyLate, Malformed, WrongMedia


async def read_body(request: Request, *, timeout_s: float) -> bytes:
    """Return the bytes of a body.

    Raises:
        WrongMedia: It is declared as something else than JSON.
        BodyLate: It is not there after ``timeout_s`` [s].
        Malformed: The client left within it.
    """
    declared = request.headers.get("content-type", "application/json")
    if declared.partition(";")[0].strip().lower() != "application/json":
        raise WrongMedia(
            "The body must be declared as application/json, and is as something else.",
            fix="Send the header 'Content-Type: application/json'.",
        )
    try:
        async with asyncio.timeout(timeout_s):
            return await request.body()
    except ClientDisconnect:
        raise Malformed("The connection ended within the body.", fix="Send it whole.") from None
    except TimeoutError:
        raise BodyLate(
            f"The body must arrive within {timeout_s:g} s, and did not.",
            fix="Send it at once, or send fewer windows.",
        ) from None
