"""What a server of the ledger is opened from, in this process or in another one."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.base.artifacts import ArtifactStore
from sluice.registry.reading import Clock
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import SigningKey
from sluice.registry.stored_code import CodeChoice
from sluice.serving.isolation import Isolation
from sluice.serving.ledger_models import LedgerModels, ledger_recipe
from sluice.serving.ledger_rollback import LedgerRollback
from sluice.serving.ledger_weights import LedgerWeights
from sluice.serving.rollback import Hook
from sluice.serving.server import open_serving
from sluice.serving.settings import ServingSettings
from sluice.serving.state import Serving
from sluice.serving.token_file import TokenFileWatch
from sluice.serving.tokens import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecipe:
    """Where everything lies; tokens as digests only, so that it may travel."""

    model: str
    settings: ServingSettings
    registry_url: str
    artifacts: Path
    tokens: Tokens
    """What clients must show; not read with ``token_file``."""

    token_file: Path | None = None
    """File of named tokens, followed when it changes."""

    host: str = "127.0.0.1"
    """Address that the server listens on; requests may call it by that."""

    registry_key: Path | None = None
    """File of the key that signs what the hook changes; None: nothing is signed."""

    code: CodeChoice = "present"
    """Whose network class gets the weights; see ``load_members``."""


@contextlib.contextmanager
def open_recipe(recipe: ServerRecipe, *, clock: Clock, log: Any) -> Iterator[Serving]:
    """Open the ledger and load what it names; the ledger is closed at the end.

    Raises:
        SluiceError: There is no ledger, nothing is in production, or it does not load.
    """
    key = None if recipe.registry_key is None else SigningKey.read(recipe.registry_key)
    load = ledger_recipe(recipe.registry_url, recipe.model, recipe.artifacts, code=recipe.code)
    if recipe.code == "stored":
        log.info("code", what="Versions are loaded with the code that is stored with them.")
    with (
        RolloutLedger.open(recipe.registry_url, clock=clock, create=False, key=key) as ledger,
        Isolation(load, recipe.settings) as isolation,
    ):
        store = ArtifactStore(recipe.artifacts)
        rollback = LedgerRollback(
            ledger, recipe.model, store, clock=clock, quiet_s=recipe.settings.hook_quiet_s
        )
        models = LedgerModels(
            ledger,
            recipe.model,
            store,
            code=recipe.code,
            warn=lambda what: log.warning("code", what=what),
        )
        watch = None if recipe.token_file is None else TokenFileWatch(recipe.token_file)
        tokens = recipe.tokens if watch is None else watch.tokens
        # With a file, a token for the hook may be added later.
        has_hook = watch is not None or tokens.has("hook")
        yield open_serving(
            recipe.model,
            LedgerWeights(ledger, recipe.model, recheck_s=recipe.settings.recheck_s),
            models.load,
            isolate=isolation.load,
            settings=recipe.settings,
            tokens=tokens,
            token_file=watch,
            hook=Hook(rollback=rollback) if has_hook else None,
            clock=clock,
            log=log,
            reports=ledger.observations.keeping(days=recipe.settings.keep_samples_days),
        )
