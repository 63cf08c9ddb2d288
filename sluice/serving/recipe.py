"""What a server of the ledger is opened from, in this process or in another one."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.artifacts import ArtifactStore
from sluice.registry.reading import Clock
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.signing import SigningKey
from sluice.registry.stored_code import CodeChoice
from sluice.serving.isolation import Isolation
from sluice.serving.ledger_models import LedgerModels, ledger_recipe
from sluice.serving.ledger_rollback import LedgerRollback
from sluice.serving.ledger_weights import LedgerWeights
from sluice.serving.limits import Token
from sluice.serving.rollback import Hook
from sluice.serving.server import open_serving
from sluice.serving.settings import ServingSettings
from sluice.serving.state import Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecipe:
    """Where everything lies; the token as a digest only, so that it may travel."""

    model: str
    settings: ServingSettings
    registry_url: str
    artifacts: Path
    token: Token | None
    hook_token: Token | None = None
    """What Alertmanager must show; None: no hook."""

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
        hook_token = recipe.hook_token
        yield open_serving(
            recipe.model,
            LedgerWeights(ledger, recipe.model),
            models.load,
            isolate=isolation.load,
            settings=recipe.settings,
            token=recipe.token,
            hook=None if hook_token is None else Hook(token=hook_token, rollback=rollback),
            clock=clock,
            log=log,
            reports=ledger.observations.keeping(days=recipe.settings.keep_samples_days),
        )
