"""The faults that have a name, and which of them bring which others about."""

from collections.abc import Mapping
from typing import Literal, get_args

Fault = Literal[
    # data
    "worker streams copied",
    "epoch order repeated",
    "ranks see the same rows",
    "ranks shuffle differently",
    "ranks hold different labels",
    "labels independent of inputs",
    "splits preprocessed differently",
    "validation rows in training",
    "non-finite input",
    "constant column",
    # tokens and masks
    "end token never supervised",
    "nothing supervised",
    "padding mask inverted",
    "later tokens leak",
    "begin token doubled",
    "id out of range",
    # structure
    "gradient cut",
    "module unregistered",
    "parameters outside the optimizer",
    "parameters replaced",
    "parameters in two optimizers",
    "frozen by mistake",
    "freeze without effect",
    "loss without path",
    "training in evaluation mode",
    "evaluating in training mode",
    "tie lost",
    "ranks diverge",
    # precision
    "scaler skips",
    "gradients underflow",
    "updates rounded away",
    "non-finite gradient",
    "clip before unscale",
    # order
    "gradients carried over",
    "gradients cleared before the step",
    "step before backward",
    "clip after step",
    "scheduler before optimizer",
    "accumulation not normalised",
    # dynamics
    "dead units",
    "constant initialisation",
    "vanishing gradients",
    "rate too high",
    "schedule ends early",
    "schedule hardly moves",
    "rate stays zero",
    "clipping unsuited",
    "moments unstable",
    # loss and selection
    "loss on wrong domain",
    "loss broadcasts",
    "logits extreme",
    "resume lost state",
    "checkpoint not loaded",
    "selection never moves",
    # symptoms that something above explains
    "loss not finite",
    "loss not falling",
    "weights do not move",
    "overfitting",
]
"""What a finding says is wrong."""

FAULTS: tuple[Fault, ...] = get_args(Fault)

_NOT_FINITE: tuple[Fault, ...] = ("loss not finite", "non-finite gradient", "scaler skips")
_NOT_LEARNING: tuple[Fault, ...] = (
    "loss not falling",
    "weights do not move",
    "labels independent of inputs",
)
_DEAD: tuple[Fault, ...] = ("vanishing gradients", "dead units")

EXPLAINS: Mapping[Fault, tuple[Fault, ...]] = {
    "non-finite input": (*_NOT_FINITE, *_NOT_LEARNING, "rate too high", "moments unstable"),
    "nothing supervised": (*_NOT_FINITE, *_NOT_LEARNING, "moments unstable"),
    "padding mask inverted": (*_NOT_FINITE, *_NOT_LEARNING, *_DEAD),
    "id out of range": (*_NOT_FINITE, *_NOT_LEARNING),
    "non-finite gradient": (
        "loss not finite",
        "scaler skips",
        *_NOT_LEARNING,
        "moments unstable",
    ),
    "rate too high": (
        "loss not finite",
        "non-finite gradient",
        *_DEAD,
        *_NOT_LEARNING,
        "clipping unsuited",
        "moments unstable",
        "logits extreme",
    ),
    "scaler skips": (*_NOT_LEARNING,),
    "loss without path": (*_NOT_LEARNING, "step before backward", *_DEAD, "gradient cut"),
    "gradient cut": (*_NOT_LEARNING, *_DEAD),
    "module unregistered": (*_NOT_LEARNING, "parameters outside the optimizer"),
    "parameters replaced": (*_NOT_LEARNING, "parameters outside the optimizer", "gradient cut"),
    "parameters outside the optimizer": _NOT_LEARNING,
    "frozen by mistake": _NOT_LEARNING,
    "gradients cleared before the step": (*_NOT_LEARNING, *_DEAD, "gradients underflow"),
    "step before backward": (*_NOT_LEARNING, *_DEAD),
    "rate stays zero": _NOT_LEARNING,
    "schedule ends early": _NOT_LEARNING,
    "schedule hardly moves": _NOT_LEARNING,
    "updates rounded away": _NOT_LEARNING,
    "gradients underflow": (*_NOT_LEARNING, *_DEAD),
    "constant initialisation": (*_NOT_LEARNING, *_DEAD),
    "dead units": (*_NOT_LEARNING, "vanishing gradients"),
    "loss on wrong domain": (*_NOT_LEARNING, "vanishing gradients"),
    "loss broadcasts": _NOT_LEARNING,
    "clip before unscale": (*_NOT_LEARNING, "clipping unsuited"),
    "clip after step": ("clipping unsuited", "rate too high", "loss not finite"),
    "gradients carried over": (
        "rate too high",
        "accumulation not normalised",
        "clipping unsuited",
        "non-finite gradient",
        "loss not finite",
        "loss not falling",
        "moments unstable",
        *_DEAD,
    ),
    "accumulation not normalised": ("clipping unsuited", "rate too high", "loss not finite"),
    "splits preprocessed differently": ("labels independent of inputs", "overfitting"),
    "labels independent of inputs": ("overfitting",),
    "evaluating in training mode": ("overfitting",),
    "ranks shuffle differently": ("ranks see the same rows", "validation rows in training"),
    "ranks see the same rows": ("validation rows in training",),
    "resume lost state": ("checkpoint not loaded",),
    "vanishing gradients": _NOT_LEARNING,
    "moments unstable": ("loss not falling",),
}
"""A fault, and those that may be there only because of it: one cause is told, not twenty alarms."""
