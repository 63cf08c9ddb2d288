"""How a rollout begins: both models are compared on held-out rows before the first user is asked.

Shape legend: N = windows, O = outputs.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked
from sluice.data.folds import Fold
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.agreement import Agreement, measure_agreement
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Transition

_NEWEST_ROWS = 2000
_BATCH = 256


def start_delivery(
    ledger: RolloutLedger,
    model: str,
    version: int,
    settings: RolloutSettings,
    *,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    store: ArtifactStore,
    actor: str,
    reason: str,
    rules: str,
) -> tuple[Transition, Agreement]:
    """Start bringing a version into production.

    Args:
        ledger: Where the rollout is kept.
        model: Its name.
        version: The challenger's number.
        settings: Stay with the rollout.
        frame: Feature frame that the challenger was evaluated on.
        folds: Of that frame; the test rows of the last one are held out from both models' newest
            members.
        store: Where the weights lie.
        actor: Who, for the record.
        reason: Why, for the record.
        rules: Digest of the settings that the verdict must have been given under.

    Returns:
        The first transition, and how far apart both models are on the held-out rows.

    Raises:
        GateBlocked: The models take other inputs, or the evidence does not allow the rollout.
        RolloutConflict: Another one is under way.
        IntegrityError: One of the models does not load.
    """
    agreement = _agreement(ledger, model, version, frame=frame, folds=folds, store=store)
    transition = ledger.start_rollout(
        model, version, settings, actor=actor, reason=reason, agreement=agreement, rules=rules
    )
    return transition, agreement


def _agreement(
    ledger: RolloutLedger,
    model: str,
    number: int,
    *,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    store: ArtifactStore,
) -> Agreement:
    from sluice.registry.loading import rebuild  # brings torch
    from sluice.serving.deployed import Deployed, load_deployed

    version, production = ledger.version(model, number), ledger.production(model)
    if production is None:
        raise GateBlocked(
            f"{model} has nothing in production that version {number} could be compared with.",
            fix=f"Promote the first one: sluice registry promote {model} {number}",
        )
    ours, theirs = load_deployed(version, store), load_deployed(production, store)
    if not ours.contract.takes_same(theirs.contract):
        raise GateBlocked(
            f"Version {number} must take the inputs that version {production.number} takes, to "
            "answer the same requests, and takes others.",
            cause=f"Windows of {ours.contract.seq_len} rows of {', '.join(ours.contract.columns)}; "
            f"in production {theirs.contract.seq_len} of {', '.join(theirs.contract.columns)}.",
            fix="Serve it under another name, or promote it by hand and restart the clients: "
            f"sluice registry promote {model} {number}",
        )
    workload, _ = rebuild(version)
    x = workload.examples(frame, folds[-1].test).x.numpy()[-_NEWEST_ROWS:].astype(np.float32)

    def answers(deployed: Deployed) -> NDArray[np.float64]:
        starts = range(0, len(x), _BATCH)
        return np.concatenate(
            [deployed.predict(x[at : at + _BATCH], None).mean(axis=0) for at in starts]
        )

    return measure_agreement(answers(theirs), answers(ours))
