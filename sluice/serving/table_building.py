"""Builds the routing table of a traffic split: loads its models, and starts their workers."""

import threading
from collections.abc import Callable

from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.arm import ArmWorker
from sluice.serving.deployed import DeployedModel, ServedModel, require_finite
from sluice.serving.isolation import Isolate
from sluice.serving.routing_table import RoutingTable
from sluice.serving.settings import ServingSettings

LoadModel = Callable[[str], DeployedModel]
"""Function that loads the model of a candidate digest. It is called from a thread, and may raise
``SluiceError``."""

_MAX_YIELD_S = 0.02
"""Maximum time for which a shadow request waits, before each network, until the arm of the users is
idle [s]. Without a maximum, a shadow request might never finish."""


def build_routing_table(
    split: TrafficSplit,
    load: LoadModel,
    *,
    isolate: Isolate | None,
    settings: ServingSettings,
    previous_table: RoutingTable | None,
    cancel_event: threading.Event,
) -> tuple[RoutingTable, str]:
    """Build the routing table of a split.

    Args:
        split: Traffic split to serve.
        load: Loads production into this process, unless ``previous_table`` already has its arm.
        isolate: Loads a challenger into its own process; None uses ``load`` for challengers, too.
        settings: Settings with the maximum batch size.
        previous_table: Table in force, whose arms are reused if possible; None at the start.
        cancel_event: Event that another thread sets if the table is no longer needed.

    Returns:
        The table, and the reason why the challenger is not served ("" if it is served).

    Raises:
        SluiceError: Production does not load.
    """
    production = (
        None
        if previous_table is None
        else _reusable_arm(previous_table.production, split.production)
    )
    if production is None:
        deployed = load(split.production)
        require_finite(deployed)
        production = _start_arm(deployed, settings)
    challenger, problem = None, ""
    if split.challenger is not None:
        if previous_table is not None:
            challenger = _reusable_arm(previous_table.challenger, split.challenger)
        try:
            if challenger is None:
                # The arm of production is never used for the challenger, even if both have the
                # same candidate digest: a fault of the challenger must not affect production.
                model: ServedModel = (
                    load(split.challenger)
                    if isolate is None
                    else isolate(split.challenger, cancel_event)
                )
                challenger = _start_arm(model, settings)
        except Exception as error:  # user code may raise anything; production must keep serving
            problem = f"The challenger does not load; production serves alone: {error}"
    if challenger is not None and not challenger.deployed.contract.has_same_input(
        production.deployed.contract
    ):
        problem = (
            f"The challenger needs {challenger.deployed.contract.summary}, and production needs "
            f"{production.deployed.contract.summary}, so the challenger cannot answer the same "
            "requests; production serves alone."
        )
        challenger = None
    shadow = None
    if challenger is not None and split.shadow:
        user_arm = production if split.share < 1 else challenger
        shadow_arm = challenger if split.share < 1 else production
        shadow = _shadow_worker(
            shadow_arm, user_arm, settings=settings, previous_table=previous_table
        )
    table = RoutingTable(split=split, production=production, challenger=challenger, shadow=shadow)
    return table, problem


def _reusable_arm(arm: ArmWorker | None, candidate: str) -> ArmWorker | None:
    """Return an arm if it serves a candidate digest, else None."""
    return arm if arm is not None and arm.deployed.candidate == candidate else None


def _start_arm(deployed: ServedModel, settings: ServingSettings) -> ArmWorker:
    return ArmWorker(deployed, max_batch_size=settings.max_batch_windows, pause=None)


def _shadow_worker(
    shadow_arm: ArmWorker,
    user_arm: ArmWorker,
    *,
    settings: ServingSettings,
    previous_table: RoutingTable | None,
) -> ArmWorker:
    """Return a second worker for the model of ``shadow_arm``, which yields to ``user_arm``."""
    if (
        previous_table is not None
        and previous_table.shadow is not None
        and previous_table.shadow.deployed is shadow_arm.deployed
        and user_arm in (previous_table.production, previous_table.challenger)
    ):
        return previous_table.shadow
    # The worker's thread references the event and not the arm, because it must not keep the arm
    # alive.
    idle_event = user_arm.idle_event
    return ArmWorker(
        shadow_arm.deployed,
        max_batch_size=settings.max_batch_windows,
        pause=lambda: idle_event.wait(_MAX_YIELD_S),
    )
