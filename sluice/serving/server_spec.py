"""Specification of a server that uses the ledger, so that any process can open the same server."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.base.artifacts import ArtifactStore
from sluice.registry.readonly import Clock
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import SigningKey
from sluice.registry.stored_code import CodeSource
from sluice.serving.isolation import Isolation
from sluice.serving.ledger_models import LedgerModels, ledger_loader_spec
from sluice.serving.ledger_rollback import LedgerRollback
from sluice.serving.ledger_traffic_split import LedgerTrafficSplit
from sluice.serving.rollback import RollbackWebhook
from sluice.serving.server import open_serving
from sluice.serving.settings import ServingSettings
from sluice.serving.state import Serving
from sluice.serving.token_file import TokenFileWatch
from sluice.serving.tokens import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """Locations and settings of a server.

    A spec may be sent to other processes, because it contains digests of tokens and no tokens.
    """

    model: str
    settings: ServingSettings
    registry_url: str
    artifacts: Path
    tokens: Tokens
    """Tokens that clients may use; ignored if ``token_file`` is given."""

    token_file: Path | None = None
    """File of named tokens, reloaded when it changes."""

    host: str = "127.0.0.1"
    """Address that the server listens on, and a trusted host name."""

    registry_key: Path | None = None
    """File of the signing key, with which the server signs rollbacks by the webhook, and verifies
    the signatures of the log before it serves a version. None for neither."""

    code: CodeSource = "current"
    """Whether to use the current or the stored code of the network class; see ``load_members``."""


@contextlib.contextmanager
def open_server(spec: ServerSpec, *, clock: Clock, log: Any) -> Iterator[Serving]:
    """Open the ledger, load the versions of its traffic split, and yield the state of a server.

    The ledger is closed after the block.

    Raises:
        SluiceError: The ledger does not exist, no version is in production, or the production
            version does not load.
    """
    signing_key = None if spec.registry_key is None else SigningKey.read(spec.registry_key)
    loader = ledger_loader_spec(spec.registry_url, spec.model, spec.artifacts, code=spec.code)
    if spec.code == "stored":
        log.info("code", what="Versions are loaded with their stored code.")
    with (
        RolloutLedger.open(spec.registry_url, clock=clock, create=False, key=signing_key) as ledger,
        Isolation(loader, spec.settings) as isolation,
    ):
        store = ArtifactStore(spec.artifacts)
        rollback = LedgerRollback(
            ledger, spec.model, store, clock=clock, cooldown_s=spec.settings.rollback_cooldown_s
        )
        models = LedgerModels(
            ledger,
            spec.model,
            store,
            code=spec.code,
            warn=lambda what: log.warning("code", what=what),
        )
        token_file_watch = None if spec.token_file is None else TokenFileWatch(spec.token_file)
        tokens = spec.tokens if token_file_watch is None else token_file_watch.tokens
        # With a token file there is always a webhook, because its token may be added later.
        has_hook = token_file_watch is not None or tokens.has("hook")
        yield open_serving(
            spec.model,
            LedgerTrafficSplit(
                ledger,
                spec.model,
                registry_check_interval_s=spec.settings.registry_check_interval_s,
            ),
            models.load,
            isolate=isolation.load,
            settings=spec.settings,
            tokens=tokens,
            token_file=token_file_watch,
            webhook=RollbackWebhook(rollback=rollback) if has_hook else None,
            clock=clock,
            log=log,
            reports=ledger.observations.with_retention(days=spec.settings.sample_retention_days),
        )
