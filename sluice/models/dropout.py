"""Another dropout rate for a network that is being trained."""

from torch import nn

from sluice.base.errors import ContractError
from sluice.models.recurrent import Recurrent
from sluice.models.scaled import Scaled
from sluice.models.slstm import SLSTM
from sluice.models.small_cnn import SmallCnn
from sluice.models.transformer import Transformer

_BUILT_IN = (Recurrent, SLSTM, Transformer, SmallCnn)
"""Networks in which every dropout has the rate of ``ModelSettings.dropout``."""


def set_dropout(model: nn.Module, rate: float) -> None:
    """Give a network the dropout rate that ``ModelSettings.dropout`` would have given it.

    A network of the user's own does it in a method ``set_dropout(rate)``: which of its rates
    follow from the settings, it alone knows.

    Args:
        model: A built-in network with dropout, or one with that method, ``Scaled`` or not; changed
            in place.
        rate: Share of values that is set to 0, from 0 to below 1.

    Raises:
        ContractError: As ``require_dropout``.
    """
    require_dropout(model)
    network = _inner(model)
    own = getattr(network, "set_dropout", None)
    if callable(own):
        own(rate)
        return
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        elif isinstance(module, nn.MultiheadAttention) or (
            # Between layers only: a single one has no dropout.
            isinstance(module, nn.RNNBase) and module.num_layers > 1
        ):
            module.dropout = rate


def require_dropout(model: nn.Module) -> None:
    """Refuse a network whose dropout rate cannot change.

    Raises:
        ContractError: It is no built-in network with dropout, and has no ``set_dropout`` method.
    """
    network = _inner(model)
    if not (isinstance(network, _BUILT_IN) or callable(getattr(network, "set_dropout", None))):
        raise ContractError(
            f"The dropout rate of {type(network).__name__} cannot change in mid-training.",
            cause="A network must have a method set_dropout(rate) for that; of the built-in "
            "architectures 'gru', 'lstm', 'slstm' and 'transformer' can do it.",
            fix="Write that method, or take dropout out of training.changes.",
        )


def _inner(model: nn.Module) -> nn.Module:
    return model.network if isinstance(model, Scaled) else model
