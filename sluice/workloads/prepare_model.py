"""Builds the network of a workload, with its scaling fitted on the train rows."""

from sluice.base.seeding import RandomStream, derive_seed
from sluice.models.build import require_network
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.workloads.workload import Examples, Workload


def prepare_model(
    workload: Workload, settings: ModelSettings, train: Examples, *, seed: int
) -> Scaled:
    """Return a newly initialised model with scaling fitted on the train rows.

    The initial weights depend only on ``seed``: the caller's random generators are neither used
    nor changed.

    Args:
        workload: Workload that builds the network and declares whether inputs and target are
            scaled.
        settings: Architecture and size.
        train: Train examples only.
        seed: Base seed, from which the seed of the initialisation is derived.

    Raises:
        SettingsError: The architecture is unknown, cannot be imported, or is not an ``nn.Module``.
    """
    output_shape = workload.output_shape(train.y)
    # The shape (N,) means one output per example, not N outputs.
    num_outputs = output_shape[-1] if len(output_shape) > 1 else 1
    with RandomStream(derive_seed(seed, "init")).active():
        network = workload.build_model(train.x.shape[-1], num_outputs, settings)
    require_network(network, f"build_model() of {type(workload).__name__}")
    return Scaled.fit(
        network,
        train.x,
        train.y,
        num_outputs=num_outputs,
        scale_inputs=workload.scale_inputs,
        scale_target=workload.scale_target,
    )
