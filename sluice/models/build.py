"""Builds a network from settings: a built-in architecture or a user-defined class."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from sluice.base.errors import SettingsError
from sluice.base.imports import import_object
from sluice.base.settings import suggest_nearest
from sluice.models.linear import LastRowLinear
from sluice.models.mlp import MultilayerPerceptron
from sluice.models.recurrent import Recurrent
from sluice.models.settings import ModelSettings
from sluice.models.slstm import SLSTM
from sluice.models.transformer import Transformer

Builder = Callable[[int, int, ModelSettings], nn.Module]
"""Function of (num_features, num_outputs, settings) that returns a network."""

ARCHITECTURES: Mapping[str, Builder] = {
    "linear": lambda num_features, num_outputs, _: LastRowLinear(num_features, num_outputs),
    "mlp": MultilayerPerceptron,
    "gru": lambda num_features, num_outputs, settings: Recurrent(
        num_features, num_outputs, settings, cell="gru"
    ),
    "lstm": lambda num_features, num_outputs, settings: Recurrent(
        num_features, num_outputs, settings, cell="lstm"
    ),
    "slstm": SLSTM,
    "transformer": Transformer,
}
"""Built-in networks, by the name used in settings."""

_BUILT_IN_PREFIX = "sluice.models."
"""Prefix of import paths of built-in networks."""


def require_known_architecture(name: str) -> None:
    """Raise an error for a name that is neither a built-in architecture nor 'module:Class'.

    Raises:
        SettingsError: The architecture is unknown.
    """
    if name not in ARCHITECTURES and ":" not in name:
        raise SettingsError(
            f"The architecture '{name}' is not known.{suggest_nearest(name, list(ARCHITECTURES))} "
            f"Known: {', '.join(sorted(ARCHITECTURES))}.",
            fix="Use one of these, or name your own class as 'module:Class'.",
        )


def build_network(num_features: int, num_outputs: int, settings: ModelSettings) -> nn.Module:
    """Return a newly initialised network that maps (B, L, D) to (B, O).

    The initial weights are drawn from torch's global generator, which the caller must seed.

    Args:
        num_features: D, columns of the input.
        num_outputs: O, columns of the prediction.
        settings: ``architecture`` is a built-in name or ``module:Class``; a class is called with
            (num_features, num_outputs, settings).

    Raises:
        SettingsError: The architecture is unknown, cannot be imported or built, or is not an
            ``nn.Module``; or ``options`` are set for a built-in architecture.
    """
    name = settings.architecture
    builder = ARCHITECTURES.get(name)
    if settings.options and (builder is not None or name.startswith(_BUILT_IN_PREFIX)):
        raise SettingsError(
            f"The architecture '{name}' has no options, got {', '.join(settings.options)}.",
            cause="Only user-defined networks have options, which they read from settings.options.",
            fix="Remove model.options, or name your own class as 'module:Class'.",
        )
    if builder is not None:
        return builder(num_features, num_outputs, settings)
    require_known_architecture(name)
    architecture = require_architecture_type(import_object(name, what="architecture"), name)
    try:
        network = architecture(num_features, num_outputs, settings)
    except TypeError as error:
        raise SettingsError(
            f"The architecture '{name}' cannot be built: {error}.",
            cause="The class is called with (num_features, num_outputs, settings).",
            fix="Let the class accept these three arguments, or correct the error in its __init__.",
        ) from error
    return require_network(network, f"architecture '{name}'")


def build_meta_network(
    num_features: int, num_outputs: int, settings: ModelSettings
) -> nn.Module | None:
    """Return a built-in network on the meta device; None for any other architecture.

    The tensors of the network have the same shapes as in ``build_network``, but need no memory,
    however large the sizes in the settings are.

    Args:
        num_features: See ``build_network``.
        num_outputs: See ``build_network``.
        settings: See ``build_network``.

    Raises:
        SettingsError: See ``build_network``.
    """
    if settings.architecture not in ARCHITECTURES and not settings.architecture.startswith(
        _BUILT_IN_PREFIX
    ):
        return None  # user code is not run, because it may have any side effect
    with torch.device("meta"):
        return build_network(num_features, num_outputs, settings)


def require_architecture_type(imported: object, path: str) -> type[nn.Module]:
    """Return the imported object if it is a network class.

    The caller must make this check before it calls the object. The settings may come from an
    untrusted file, which must not be able to call any other function.

    Args:
        imported: Object imported from ``path``.
        path: Import path, for the message.

    Raises:
        SettingsError: The object is not a class, or does not inherit from ``nn.Module``.
    """
    if isinstance(imported, type) and issubclass(imported, nn.Module):
        return imported
    requirement = f"The architecture '{path}' must be a subclass of torch.nn.Module"
    if isinstance(imported, type):
        raise _not_a_network_error(f"{requirement}, got the class", imported)
    raise _not_a_network_error(f"{requirement}, got an object of type", type(imported))


def require_network(network: object, source: str) -> nn.Module:
    """Return the network if it is an ``nn.Module``.

    Args:
        network: The object that was built.
        source: Name of the code that built it, for the message.

    Raises:
        SettingsError: The object is not an ``nn.Module``.
    """
    if not isinstance(network, nn.Module):
        raise _not_a_network_error(
            f"The {source} must return a torch.nn.Module, got an object of type", type(network)
        )
    return network


def _not_a_network_error(message_start: str, received_type: type) -> SettingsError:
    return SettingsError(
        f"{message_start} {received_type.__module__}.{received_type.__qualname__}.",
        cause="A candidate must be a torch.nn.Module, because it is trained by gradient descent. "
        "Estimators of scikit-learn and other libraries cannot be candidates.",
        fix="Let the class inherit from torch.nn.Module. To compare a candidate with an "
        "estimator, fit the estimator in baseline() of the workload.",
    )
