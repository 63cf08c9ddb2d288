"""From settings to a network: the built-in architectures, or a class of the user's own."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from sluice.base.errors import SettingsError
from sluice.base.imports import import_named
from sluice.base.settings import nearest
from sluice.models.linear import LastRowLinear
from sluice.models.recurrent import Recurrent
from sluice.models.settings import ModelSettings
from sluice.models.slstm import SLSTM
from sluice.models.transformer import Transformer

Builder = Callable[[int, int, ModelSettings], nn.Module]

ARCHITECTURES: Mapping[str, Builder] = {
    "linear": lambda num_features, num_outputs, _: LastRowLinear(num_features, num_outputs),
    "gru": lambda num_features, num_outputs, settings: Recurrent(
        num_features, num_outputs, settings, cell="gru"
    ),
    "lstm": lambda num_features, num_outputs, settings: Recurrent(
        num_features, num_outputs, settings, cell="lstm"
    ),
    "slstm": SLSTM,
    "transformer": Transformer,
}
"""Networks that come with Sluice, by the name used in settings."""


_OWN = "sluice.models."


def build_network(num_features: int, num_outputs: int, settings: ModelSettings) -> nn.Module:
    """Return a freshly initialised network from (B, L, D) to (B, O).

    The initial weights come from torch's global generator: seed it before.

    Args:
        num_features: D, columns of the input.
        num_outputs: O, columns of the prediction.
        settings: ``architecture`` is a built-in name or ``module:Class``; a class is called with
            (num_features, num_outputs, settings).

    Raises:
        SettingsError: The architecture is unknown, does not import, cannot be built, is no
            ``nn.Module``, or is a built-in one and ``options`` are given.
    """
    name = settings.architecture
    builder = ARCHITECTURES.get(name)
    if settings.options and (builder is not None or name.startswith(_OWN)):
        raise SettingsError(
            f"The architecture '{name}' has no options, got {', '.join(settings.options)}.",
            cause="model.options are read by a network of your own, as settings.options.",
            fix="Take model.options out, or name your own class as 'module:Class'.",
        )
    if builder is not None:
        return builder(num_features, num_outputs, settings)
    if ":" not in name:
        raise SettingsError(
            f"The architecture '{name}' is not known.{nearest(name, list(ARCHITECTURES))} "
            f"Known: {', '.join(sorted(ARCHITECTURES))}.",
            fix="Name one of these, or your own class as 'module:Class'.",
        )
    make = require_architecture_type(import_named(name, what="architecture"), name)
    try:
        network = make(num_features, num_outputs, settings)
    except TypeError as error:
        raise SettingsError(
            f"The architecture '{name}' cannot be built: {error}.",
            cause="It is called with (num_features, num_outputs, settings).",
            fix="Let the class take these three arguments.",
        ) from error
    return require_network(network, f"architecture '{name}'")


def sketch_network(
    num_features: int, num_outputs: int, settings: ModelSettings
) -> nn.Module | None:
    """Return a network of Sluice's own without memory for its numbers; None for a user's.

    It has the shapes that ``build_network`` would make, whatever size the settings state.

    Args:
        num_features: As ``build_network``.
        num_outputs: As ``build_network``.
        settings: As ``build_network``.

    Raises:
        SettingsError: As ``build_network``.
    """
    if settings.architecture not in ARCHITECTURES and not settings.architecture.startswith(_OWN):
        return None  # a user's code may do anything while it is built
    with torch.device("meta"):
        return build_network(num_features, num_outputs, settings)


def require_architecture_type(found: object, path: str) -> type[nn.Module]:
    """Return ``found``, which ``path`` named, when it is a class of networks.

    It is checked before it is called: a setting may come from a file, and any other callable
    would run with arguments of the file's choice.

    Raises:
        SettingsError: It is a function, or a class that does not inherit from ``nn.Module``.
    """
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        kind = found if isinstance(found, type) else type(found)
        raise _no_network(
            f"The architecture '{path}' must be a class of torch.nn.Module, it is one", kind
        )
    return found


def require_network(network: object, source: str) -> nn.Module:
    """Return the network, if it is one.

    Args:
        network: What was built.
        source: What built it, for the message.

    Raises:
        SettingsError: It is no ``nn.Module``.
    """
    if not isinstance(network, nn.Module):
        raise _no_network(f"The {source} must make a torch.nn.Module, it made one", type(network))
    return network


def _no_network(said: str, kind: type) -> SettingsError:
    return SettingsError(
        f"{said} of type {kind.__module__}.{kind.__qualname__}.",
        cause="A candidate is a torch.nn.Module today: it is trained by gradients. An estimator "
        "of scikit-learn or of another library cannot be a candidate.",
        fix="Let the class inherit from torch.nn.Module. To compare a candidate with an "
        "estimator, fit the estimator in baseline() of the workload.",
    )
