"""The space that is searched unless the user writes one (TUNE-2)."""

from sluice.tuning.parameters import Integers, LogUniform, Parameter, PowersOfTwo, Uniform, When
from sluice.tuning.spaces import Setup, Space

_DEEPEST, _WIDEST = 3, 128


def default_space(base: Setup) -> Space:
    """Return the space for ``base``, the parameters that matter most first.

    The learning rate leads, since no other setting moves the loss as far; then the width, whose
    best value is unknown for new data; then the decay, which may be off. Ranges reach about a
    factor of 30 to both sides of what usually works. A linear network has no width or depth, and
    dropout acts between layers, so that one recurrent layer has none. Where the width must be a
    multiple of the attention heads, only such widths are tried.
    """
    kind = base.model.architecture
    space: dict[str, Parameter] = {
        "training.learning_rate": LogUniform(low=1e-4, high=1e-1),
        "training.weight_decay": LogUniform(low=1e-5, high=1e-1, may_be_off=True),
        "training.batch_rows": PowersOfTwo(low=32, high=512),
    }
    if kind != "linear":
        step = base.model.heads if kind == "transformer" else 8
        rate = space.pop("training.learning_rate")
        space = {
            "training.learning_rate": rate,
            "model.hidden": Integers(
                low=2 * step, high=max(4, _WIDEST // step) * step, multiple_of=step
            ),
            **space,
            "model.layers": Integers(low=1, high=_DEEPEST),
            "model.dropout": Uniform(
                low=0.0,
                high=0.5,
                when=None
                if kind == "transformer"
                else When(path="model.layers", one_of=tuple(range(2, _DEEPEST + 1))),
            ),
        }
    return Space(parameters=space)
