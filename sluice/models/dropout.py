"""Changes the dropout rate of a network during training."""

from torch import nn

from sluice.base.errors import ContractError
from sluice.models.causal_transformer import CausalTransformer
from sluice.models.image_cnn import ImageCnn
from sluice.models.mlp import MultilayerPerceptron
from sluice.models.recurrent import Recurrent
from sluice.models.scaled import Scaled
from sluice.models.slstm import SLSTM
from sluice.models.small_cnn import SmallCnn
from sluice.models.text_cnn import TextCnn
from sluice.models.transformer import Transformer

_NETWORKS_WITH_DROPOUT = (
    MultilayerPerceptron,
    Recurrent,
    SLSTM,
    Transformer,
    CausalTransformer,
    ImageCnn,
    SmallCnn,
    TextCnn,
)
"""Built-in networks with dropout, whose dropout layers all have the rate
``ModelSettings.dropout``."""


def set_dropout(model: nn.Module, rate: float) -> None:
    """Set the dropout rate of a network, as ``ModelSettings.dropout`` does for a new network.

    A user-defined network must have a method ``set_dropout(rate)``, because only the network knows
    which of its rates depend on the settings.

    Args:
        model: A built-in network with dropout, or a network with a method ``set_dropout``. The
            network may be wrapped in ``Scaled``. It is changed in place.
        rate: Share of values set to 0, in [0, 1).

    Raises:
        ContractError: See ``require_dropout``.
    """
    require_dropout(model)
    network = _unscaled_network(model)
    custom_method = getattr(network, "set_dropout", None)
    if callable(custom_method):
        custom_method(rate)
        return
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        elif isinstance(module, nn.MultiheadAttention) or (
            # torch applies this dropout only between layers, so a single layer has no dropout.
            isinstance(module, nn.RNNBase) and module.num_layers > 1
        ):
            module.dropout = rate


def require_dropout(model: nn.Module) -> None:
    """Raise an error for a network whose dropout rate cannot be changed.

    Raises:
        ContractError: The network is not a built-in network with dropout, and has no method
            ``set_dropout``.
    """
    network = _unscaled_network(model)
    if not (
        isinstance(network, _NETWORKS_WITH_DROPOUT)
        or callable(getattr(network, "set_dropout", None))
    ):
        raise ContractError(
            f"The dropout rate of {type(network).__name__} cannot be changed during training.",
            cause="The network has no method set_dropout(rate), and is no built-in network with "
            "dropout, such as 'mlp', 'gru', 'lstm', 'slstm' or 'transformer'.",
            fix="Add the method to the network, or remove dropout from training.changes.",
        )


def _unscaled_network(model: nn.Module) -> nn.Module:
    return model.network if isinstance(model, Scaled) else model
