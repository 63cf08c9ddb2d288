"""The first tensor of a run that no healthy training has: where to look (TRACE-8, TRACE-15)."""

import math
from collections.abc import Iterator

from pydantic import Field

from sluice.base.settings import Record
from sluice.trace.evidence.measures import OptimizerMeasure, StepMeasures
from sluice.trace.evidence.membership import Membership
from sluice.trace.evidence.trace import Trace


class Abnormal(Record):
    """One tensor at one step."""

    step: int
    tensor: str = Field(description="'input column 3', 'output of Net.encoder', ...")
    what: str = Field(description="What is abnormal in it.")


def first_abnormal(trace: Trace) -> Abnormal | None:
    """Return the first tensor with a number that is not finite, or without a number but zeros.

    Within a step the order is that of the computation: inputs, outputs along the network, loss,
    gradients from the loss back, weights. Only steps with statistics tell of all tensors; the loss
    and the first gradients that are not finite are told of at every step.
    """
    found = [
        *_inputs(trace),
        *_measured(trace),
        *_gradients(trace),
        *_spoiled(trace),
        *_losses(trace),
    ]
    return min(found, key=lambda place: place[:2], default=(0, 0, None))[2]


_INPUT, _OUTPUT, _LOSS, _GRADIENT, _WEIGHT, _DEAD = range(6)

_Place = tuple[int, int, Abnormal | None]


def _inputs(trace: Trace) -> Iterator[_Place]:
    for fact in trace.bad_numbers:
        step = fact.step + 1
        columns = ", ".join(map(str, fact.columns))
        bad = Abnormal(
            step=step,
            tensor=f"{fact.what} column {columns}" if columns else fact.what,
            what=f"numbers that are NaN: {fact.num_nan}, infinite: {fact.num_infinite}, in "
            f"{fact.num_rows} of {fact.shape[0] if fact.shape else 1} rows",
        )
        yield step, _INPUT, bad


def _measured(trace: Trace) -> Iterator[_Place]:
    for measures in trace.measures:
        yield from _outputs(trace, measures)
        for optimizer in measures.optimizers:
            yield from _parameters(trace, measures.step, optimizer)


def _outputs(trace: Trace, measures: StepMeasures) -> Iterator[_Place]:
    for output in measures.outputs:
        name = network_name(trace.membership, output.network)
        tensor = f"output of {name}.{output.module}" if output.module else f"output of {name}"
        if not math.isfinite(output.norm):
            place = Abnormal(step=measures.step, tensor=tensor, what="its norm is not finite")
            yield measures.step, _OUTPUT, place
        elif output.zero_share == 1 and output.numel > 1 and "ReLU" in output.kind:
            place = Abnormal(
                step=measures.step, tensor=tensor, what=f"all {output.numel:,} numbers are 0"
            )
            yield measures.step, _DEAD, place


def _parameters(trace: Trace, step: int, optimizer: OptimizerMeasure) -> Iterator[_Place]:
    names = trace.membership
    columns = (
        (_GRADIENT, "gradient of", optimizer.grad_norms),
        (_WEIGHT, "weights of", optimizer.weight_norms),
    )
    for order, called, norms in columns:
        # The last parameter is nearest to the loss, which is where backward begins.
        pairs = zip(reversed(optimizer.parameters), reversed(norms), strict=True)
        bad = next((index for index, norm in pairs if not math.isfinite(norm)), None)
        if bad is not None:
            name = f"parameter {bad}" if names is None else names.name_of(bad)
            place = Abnormal(step=step, tensor=f"{called} {name}", what="its norm is not finite")
            yield step, order, place


def _gradients(trace: Trace) -> Iterator[_Place]:
    for fact in trace.gradients:
        if fact.parameters:
            # The last parameter is nearest to the loss.
            bad, names = fact.parameters[-1], trace.membership
            name = f"parameter {bad}" if names is None else names.name_of(bad)
            what = f"it is not finite, as those of {len(fact.parameters)} parameters"
            place = Abnormal(step=fact.step, tensor=f"gradient of {name}", what=what)
            yield fact.step, _GRADIENT, place


def _spoiled(trace: Trace) -> Iterator[_Place]:
    for fact in trace.spoiled:
        bad, names = fact.parameters[-1], trace.membership
        name = f"parameter {bad}" if names is None else names.name_of(bad)
        what = "numbers that are not finite, whose gradients were"
        yield fact.step, _WEIGHT, Abnormal(step=fact.step, tensor=f"weights of {name}", what=what)


def _losses(trace: Trace) -> Iterator[_Place]:
    for numbers in trace.numbers:
        bad = next((loss for loss in numbers.losses if not math.isfinite(loss)), None)
        if bad is not None:
            place = Abnormal(step=numbers.step, tensor="the loss", what=f"it is {bad}")
            yield numbers.step, _LOSS, place


def network_name(membership: Membership | None, index: int) -> str:
    """Return what a network is called."""
    networks = () if membership is None else membership.networks
    return next((n.name for n in networks if n.index == index), f"network {index}")
