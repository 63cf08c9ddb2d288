"""Builds the network of a workload, with its normaliser fitted on the train rows."""

from sluice.base.seeding import Stream, derive_seed
from sluice.models.build import require_network
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.workloads.workload import Examples, Workload


def prepare_model(
    workload: Workload, settings: ModelSettings, train: Examples, *, seed: int
) -> Scaled:
    """Return a freshly initialised model, scaled by the train rows.

    The initial weights follow from ``seed`` alone: the caller's generators are neither read nor
    moved.

    Args:
        workload: Builds the network and says what is scaled.
        settings: Architecture and size.
        train: The train rows, and only these.
        seed: Base seed; the initialisation has its own, derived from it (TRACE-6).

    Raises:
        SettingsError: The architecture is unknown, does not import, or is no ``nn.Module``.
    """
    output_shape = workload.output_shape(train.y)
    # An output (N,) is one number for each example, not N.
    num_outputs = output_shape[-1] if len(output_shape) > 1 else 1
    with Stream(derive_seed(seed, "init")).active():
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
