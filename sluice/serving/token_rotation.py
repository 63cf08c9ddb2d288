"""Reloads the tokens while the server runs."""

import asyncio

from sluice.base.errors import SluiceError
from sluice.serving.background import in_background
from sluice.serving.state import Serving
from sluice.serving.token_file import TokenFileWatch


async def follow_tokens(serving: Serving, watch: TokenFileWatch) -> None:
    """Use the tokens of the file whenever it changes; keep the present ones if it is invalid.

    Args:
        serving: State of the server.
        watch: Token file.
    """
    while True:
        await asyncio.sleep(serving.settings.poll_interval_s)
        try:
            # In a thread, because a file on a network may be slow.
            tokens = await asyncio.wrap_future(in_background(watch.refresh, name="tokens"))
        except SluiceError as error:
            serving.split_sync.note(
                "tokens", f"The token file cannot be used; the previous tokens stay: {error}"
            )
            continue
        serving.split_sync.note("tokens", "")
        if tokens is not None:
            serving.set_tokens(tokens)
            serving.log.info("tokens", what=f"{len(tokens.grants)} tokens are in force.")
