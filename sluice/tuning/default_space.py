"""The default search space of each architecture."""

from sluice.tuning.conditions import Condition
from sluice.tuning.parameters import (
    Integers,
    LogUniform,
    Parameter,
    PowersOfTwo,
    Uniform,
)
from sluice.tuning.spaces import Space, TrialSettings

_MAX_LAYERS, _MAX_WIDTH = 3, 128
_WIDTH_STEP = 8
"""Difference between two consecutive tried widths, for networks without attention heads."""


def default_space(base: TrialSettings) -> Space:
    """Return the default space for ``base``, with the most important parameters first.

    The learning rate is first, because no other setting affects the loss as much. The width is
    second, because its best value is unknown for new data. The weight decay, which may be off,
    follows. The range of the learning rate extends by a factor of about 30 to both sides of 0.003.

    A linear network has no width, depth or dropout. In recurrent networks dropout acts mainly
    between layers, so dropout is searched only with at least two layers. The same is assumed for a
    network of the user. In a multilayer perceptron, dropout acts after each layer. For a
    transformer, only multiples of the number of attention heads are tried as widths.
    """
    architecture = base.model.architecture
    space: dict[str, Parameter] = {
        "training.learning_rate": LogUniform(low=1e-4, high=1e-1),
        "training.weight_decay": LogUniform(low=1e-5, high=1e-1, may_be_off=True),
        "training.batch_rows": PowersOfTwo(low=32, high=512),
    }
    if architecture != "linear":
        step = base.model.heads if architecture == "transformer" else _WIDTH_STEP
        learning_rate = space.pop("training.learning_rate")
        space = {
            "training.learning_rate": learning_rate,
            "model.hidden": Integers(
                low=2 * step, high=max(4, _MAX_WIDTH // step) * step, multiple_of=step
            ),
            **space,
            "model.layers": Integers(low=1, high=_MAX_LAYERS),
            "model.dropout": Uniform(
                low=0.0,
                high=0.5,
                when=None
                if architecture in ("transformer", "mlp")
                else Condition(path="model.layers", one_of=tuple(range(2, _MAX_LAYERS + 1))),
            ),
        }
    return Space(parameters=space)
