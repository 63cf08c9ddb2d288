"""Builds the network of a workload, with its scaling fitted on the train rows."""

import torch
from torch import Tensor

from sluice.base.seeding import RandomStream, derive_seed
from sluice.models.build import require_network
from sluice.models.input_encoder import InputEncoder
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.workloads.examples import Examples
from sluice.workloads.fitted_state import fitted_encoder
from sluice.workloads.workload import Workload


def prepare_model(
    workload: Workload, settings: ModelSettings, train: Examples, *, seed: int
) -> Scaled:
    """Return a newly initialised model with scaling fitted on the train rows.

    The initial weights depend only on ``seed``: the caller's random generators are neither used
    nor changed.

    Args:
        workload: Workload that builds the network and declares whether inputs and target are
            scaled. A workload with ``fit`` must be fitted, see ``fit_workload``.
        settings: Architecture and size.
        train: Train examples only.
        seed: Base seed, from which the seed of the initialisation is derived.

    Raises:
        SettingsError: The architecture is unknown, cannot be imported, or is not an ``nn.Module``.
        ContractError: The workload has ``fit``, and ``fit`` was not called.
    """
    encoder = fitted_encoder(workload)
    num_features, num_outputs = _count_features_and_outputs(workload, train, encoder)
    with RandomStream(derive_seed(seed, "init")).active():
        network = workload.build_model(num_features, num_outputs, settings)
    require_network(network, f"build_model() of {type(workload).__name__}")
    return Scaled.fit(
        network,
        train.x,
        train.y,
        num_outputs=num_outputs,
        scale_inputs=workload.scale_inputs,
        scale_target=workload.scale_target,
        encoder=encoder,
    )


def _count_features_and_outputs(
    workload: Workload, train: Examples, encoder: InputEncoder | None
) -> tuple[int, int]:
    """Return the numbers of features and of outputs; 0 features for a dict of inputs."""
    first_example = train.take(torch.arange(1))
    # A tensor is passed as a whole, because output_shape() may read all values, such as classes.
    targets = train.y if isinstance(train.y, Tensor) else first_example.targets
    output_shape = workload.output_shape(targets)
    # An output (N,) has one value per example, not N outputs.
    num_outputs = output_shape[-1] if len(output_shape) > 1 else 1
    x = first_example.inputs if encoder is None else encoder(first_example.inputs)
    return x.shape[-1] if isinstance(x, Tensor) else 0, num_outputs
