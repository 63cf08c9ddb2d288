"""Applies changes of the token file while the server runs."""

import asyncio

from sluice.base.errors import SluiceError
from sluice.base.pluralize import pluralize
from sluice.serving.background import run_in_background
from sluice.serving.state import Serving
from sluice.serving.token_file import TokenFileWatch


async def follow_tokens(serving: Serving, watch: TokenFileWatch) -> None:
    """Use the new tokens whenever the file changes; if the file is invalid, keep the old tokens.

    Args:
        serving: State of the server.
        watch: Watch of the token file.
    """
    while True:
        await asyncio.sleep(serving.settings.poll_interval_s)
        try:
            # The file is read in a thread, because a network file system may be slow.
            tokens = await asyncio.wrap_future(run_in_background(watch.refresh, name="tokens"))
        except SluiceError as error:
            serving.split_sync.set_problem(
                "tokens",
                f"The token file cannot be used, so the previous tokens stay in force: {error}",
            )
            continue
        serving.split_sync.clear_problem("tokens")
        if tokens is not None:
            serving.set_tokens(tokens)
            serving.log.info("tokens", what=f"{pluralize(len(tokens.grants), 'token')} in force.")
