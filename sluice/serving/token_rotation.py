"""Tokens that change while the server runs."""

import asyncio

from sluice.base.errors import SluiceError
from sluice.serving.background import in_background
from sluice.serving.state import Serving
from sluice.serving.token_file import TokenFileWatch


async def follow_tokens(serving: Serving, watch: TokenFileWatch) -> None:
    """Take over the tokens of the file whenever it changed; those before stay when it is no good.

    Args:
        serving: Whose tokens they are.
        watch: Of the file.
    """
    while True:
        await asyncio.sleep(serving.settings.poll_s)
        try:
            # In a thread: a file on a network may take its time.
            tokens = await asyncio.wrap_future(in_background(watch.refresh, name="tokens"))
        except SluiceError as error:
            serving.follower.note(
                "tokens", f"The token file cannot be used, the tokens before stay: {error}"
            )
            continue
        serving.follower.note("tokens", "")
        if tokens is not None:
            serving.set_tokens(tokens)
            serving.log.info("tokens", what=f"{len(tokens.grants)} tokens are in force.")
