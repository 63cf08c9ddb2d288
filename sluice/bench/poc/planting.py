"""Functions and constants with which the tables of defects build their set-ups."""

from typing import Any

from sluice.bench.poc.setup import POC, TRAINING, PocSetup, network
from sluice.config.poc_settings import PocSettings, TimeLimit
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Workload

MLP = network("networks:Mlp")
GRU = network("gru", hidden=16)
CNN = network("networks:ConvNet", hidden=8)
SHORT_LIMIT = TimeLimit(typical_s=1.0, max_s=1.5)
"""Time limit of a check for defects that never end; shorter than the default."""


def make_setup(
    workload: type[Workload],
    architecture: ModelSettings = MLP,
    *,
    training: TrainSettings = TRAINING,
    poc: PocSettings = POC,
    settings: dict[str, Any] | None = None,
    is_served: bool = False,
) -> PocSetup:
    """Return the set-up of a workload. Arguments that are not given have healthy defaults."""
    return PocSetup(
        workload=workload,
        model=architecture,
        training=training,
        poc=poc,
        settings=settings or {},
        is_served=is_served,
    )


def faulty_network(name: str, *, hidden: int = 32) -> ModelSettings:
    """Return settings for a network of the module ``network_defects``."""
    return network(f"network_defects:{name}", hidden=hidden)


def with_learning_rate(learning_rate: float) -> TrainSettings:
    """Return the training settings of this benchmark with another learning rate."""
    return TRAINING.model_copy(update={"learning_rate": learning_rate})


def with_time_limits(**limits: TimeLimit) -> PocSettings:
    """Return settings of the POC gate with other time limits, given by field of ``TimeLimits``."""
    return POC.model_copy(update={"times": POC.times.model_copy(update=limits)})
