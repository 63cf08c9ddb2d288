"""``sluice.serve``: serves predictions of the production model."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.base.errors import SettingsError
from sluice.base.extras import naming_extras
from sluice.base.home import Home

if TYPE_CHECKING:
    from sluice.registry.stored_code import CodeSource
    from sluice.serving.settings import ServingSettings
    from sluice.serving.tls import Tls


def serve(
    model: str,
    *,
    settings: "ServingSettings | None" = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    token_file: Path | str | None = None,
    tls: "Tls | None" = None,
    code: "CodeSource" = "current",
) -> None:
    """Serve predictions of the production model until SIGTERM or Ctrl-C, as ``sluice serve`` does.

    When another version is promoted, the server switches to this version. When the server is ready,
    it prints a line of JSON with its URL. It logs to stderr. The function returns only when the
    server has stopped, so call it in a separate program.

    Args:
        model: Name of the model in the registry.
        settings: Limits of the server.
        host: Address to listen on; without a token only loopback is allowed.
        port: Port to listen on; 0 selects a free port.
        token: Token that all clients use. Without a token, the server accepts all requests from
            this machine.
        token_file: File of named tokens, created by ``sluice tokens add``, instead of ``token``.
        tls: Certificate and key, for HTTPS.
        code: 'current' runs the code of this program's checkout, 'stored' the code that is stored
            with the version.

    Raises:
        SettingsError: The extra 'serving' is not installed, the address cannot be used, or both
            ``token`` and ``token_file`` are given.
        UnknownVersion: Nothing is in production.
    """
    if token is not None and token_file is not None:
        raise SettingsError(
            "token and token_file cannot be combined.", fix="Pass only token or only token_file."
        )
    with naming_extras("sluice.serve"):
        from sluice.serving.foreground import open_foreground
        from sluice.serving.server import serve as run_server
        from sluice.serving.server_spec import ServerSpec
        from sluice.serving.settings import ServingSettings
        from sluice.serving.token_file import TokenFile
        from sluice.serving.tokens import Tokens

        home = Home.from_environment(os.environ, cwd=Path.cwd())
        tokens_path = None if token_file is None else Path(token_file)
        spec = ServerSpec(
            model=model,
            settings=settings or ServingSettings(),
            registry_url=home.registry_url,
            artifacts=home.artifacts,
            tokens=Tokens.of(serve=token)
            if tokens_path is None
            else TokenFile.read(tokens_path).to_tokens(),
            token_file=tokens_path,
            host=host,
            registry_key=home.registry_key,
            code=code,
        )
        with open_foreground(spec, tls=tls) as (serving, on_ready):
            run_server(serving, host=host, port=port, tls=tls, on_ready=on_ready)
