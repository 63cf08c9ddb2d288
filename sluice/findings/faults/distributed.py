"""Faults between the ranks of a distributed training."""

from functools import partial
from typing import Literal

from sluice.findings.fault import Fault

DistributedFault = Literal[
    "missing distributed sampler",
    "sampler seed mismatch",
    "label skew across ranks",
    "weights diverge across ranks",
]

_fault = partial(Fault, topic="distributed")

DISTRIBUTED_FAULTS: tuple[Fault, ...] = (
    _fault(
        id="missing-distributed-sampler",
        name="missing distributed sampler",
        severity="error",
        description="Ranks train on the same rows, so additional ranks add no information.",
        cause="The loader has no DistributedSampler.",
        fix="Use a DistributedSampler for the loader, and call its set_epoch() before each epoch.",
        detectors=("tracer",),
    ),
    _fault(
        id="sampler-seed-mismatch",
        name="sampler seed mismatch",
        severity="error",
        description=(
            "Every rank takes its shard from a different order of the rows: some rows are used "
            "twice per epoch, other rows never."
        ),
        cause="The samplers of the ranks have different seeds.",
        fix="Use the same seed for the samplers of all ranks.",
        detectors=("tracer",),
    ),
    _fault(
        id="label-skew-across-ranks",
        name="label skew across ranks",
        severity="confirm",
        description=(
            "The label distributions of the ranks differ, so batch norm and the metrics of a rank "
            "are computed from a part of the labels."
        ),
        cause="Rows were divided in an order that depends on the labels.",
        fix="Shuffle the rows before they are divided among the ranks.",
        detectors=("tracer",),
    ),
    _fault(
        id="weights-diverge-across-ranks",
        name="weights diverge across ranks",
        severity="error",
        description="The weights of the ranks differ: each rank trains its own network.",
        cause=(
            "Gradients are not averaged over the ranks, for example because the network is called "
            "without its wrapper, or the ranks started with different weights."
        ),
        fix=(
            "Call the wrapper, ddp(x), not ddp.module(x). If you reduce gradients yourself, reduce "
            "all gradients and start with equal weights."
        ),
        detectors=("tracer",),
    ),
)
