"""Defines which other faults each fault can cause."""

from collections.abc import Mapping

from sluice.findings.catalogue import FaultName

_NON_FINITE: tuple[FaultName, ...] = (
    "non-finite loss",
    "non-finite gradient",
    "gradient scaler skips steps",
)
"""Faults that non-finite values cause."""
_NOT_LEARNING: tuple[FaultName, ...] = (
    "loss not decreasing",
    "weights not updating",
    "shuffled labels",
)
"""Faults that are reported when a network does not learn, for any reason."""
_NO_GRADIENT: tuple[FaultName, ...] = ("vanishing gradients", "dead units")
"""Faults that are reported when layers receive no gradient."""

CONSEQUENCES: Mapping[FaultName, tuple[FaultName, ...]] = {
    "non-finite input": (
        *_NON_FINITE,
        *_NOT_LEARNING,
        "learning rate too high",
        "unstable Adam moments",
    ),
    "all targets ignored": (*_NON_FINITE, *_NOT_LEARNING, "unstable Adam moments"),
    "inverted padding mask": (*_NON_FINITE, *_NOT_LEARNING, *_NO_GRADIENT),
    "index out of range": (*_NON_FINITE, *_NOT_LEARNING),
    "non-finite gradient": (
        "non-finite loss",
        "gradient scaler skips steps",
        *_NOT_LEARNING,
        "unstable Adam moments",
    ),
    "learning rate too high": (
        "non-finite loss",
        "non-finite gradient",
        *_NO_GRADIENT,
        *_NOT_LEARNING,
        "clip norm mismatch",
        "unstable Adam moments",
        "extreme logits",
    ),
    "gradient scaler skips steps": _NOT_LEARNING,
    "detached loss": (*_NOT_LEARNING, "step before backward", *_NO_GRADIENT, "detached subgraph"),
    "detached subgraph": (*_NOT_LEARNING, *_NO_GRADIENT),
    "unregistered module": (*_NOT_LEARNING, "parameters not optimized"),
    "stale optimizer parameters": (*_NOT_LEARNING, "parameters not optimized", "detached subgraph"),
    "parameters not optimized": _NOT_LEARNING,
    "unintended freeze": _NOT_LEARNING,
    "misplaced zero_grad": (*_NOT_LEARNING, *_NO_GRADIENT, "gradient underflow"),
    "step before backward": (*_NOT_LEARNING, *_NO_GRADIENT),
    "learning rate stays zero": _NOT_LEARNING,
    "schedule ends early": _NOT_LEARNING,
    "scheduler stepped per epoch": _NOT_LEARNING,
    "updates lost to rounding": _NOT_LEARNING,
    "gradient underflow": (*_NOT_LEARNING, *_NO_GRADIENT),
    "constant initialization": (*_NOT_LEARNING, *_NO_GRADIENT),
    "dead units": (*_NOT_LEARNING, "vanishing gradients"),
    "logits-probability mix-up": (*_NOT_LEARNING, "vanishing gradients"),
    "loss broadcasting": _NOT_LEARNING,
    "clip before unscale": (*_NOT_LEARNING, "clip norm mismatch"),
    "clip after step": ("clip norm mismatch", "learning rate too high", "non-finite loss"),
    "missing zero_grad": (
        "learning rate too high",
        "unnormalized gradient accumulation",
        "clip norm mismatch",
        "non-finite gradient",
        "non-finite loss",
        "loss not decreasing",
        "unstable Adam moments",
        *_NO_GRADIENT,
    ),
    "unnormalized gradient accumulation": (
        "clip norm mismatch",
        "learning rate too high",
        "non-finite loss",
    ),
    "preprocessing skew": ("shuffled labels", "overfitting"),
    "shuffled labels": ("overfitting",),
    "evaluation in training mode": ("overfitting",),
    "sampler seed mismatch": ("missing distributed sampler", "train-validation leakage"),
    "missing distributed sampler": ("train-validation leakage",),
    "resume state lost": ("checkpoint not loaded",),
    "vanishing gradients": _NOT_LEARNING,
    "unstable Adam moments": ("loss not decreasing",),
}
"""For each fault, the faults that it can cause.

A report names the root cause and lists its consequences below it, not as separate findings.
"""
