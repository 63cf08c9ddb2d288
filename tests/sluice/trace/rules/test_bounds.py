"""Clipping that bites always, and moments that run away: warnings (TRACE-12, TRACE-13)."""

import pytest

from sluice.trace.evidence.measures import ClipMeasure, OptimizerMeasure, StepMeasures, StepNumbers
from sluice.trace.rules.clipping_unsuited import CLIPPING_UNSUITED
from sluice.trace.rules.moments_unstable import MOMENTS_UNSTABLE
from sluice.trace.rules.steps import optimizers_in
from tests.support.traced import surroundings as seen


@pytest.mark.parametrize(
    ("program", "norm", "warns"),
    [
        (seen.without_a_state, 500.0, True),
        (seen.without_a_state, 5.0, False),
        (seen.resumed_with_its_state, 500.0, False),
    ],
    ids=["SGD, far above", "SGD, near", "AdamW, far above"],
)
def test_a_bound_far_below_every_norm_sets_the_length_of_each_step(trace_of, program, norm, warns):
    trace = trace_of(program)
    clip = ClipMeasure(optimizer=optimizers_in(trace)[0], norm=norm, max_norm=1.0)
    numbers = tuple(StepNumbers(step=s, losses=(1.0,), clips=(clip,)) for s in range(1, 41))
    found = CLIPPING_UNSUITED(trace.model_copy(update={"numbers": numbers}))

    assert [(f.severity, f.evidence["ratio"]) for f in found] == [("warning", norm)] * warns


def moments(trace, norms):
    own = optimizers_in(trace)[0]  # one that another test left may be before it
    return MOMENTS_UNSTABLE(
        trace.model_copy(
            update={
                "measures": tuple(
                    StepMeasures(
                        step=step,
                        optimizers=(
                            OptimizerMeasure(
                                optimizer=own,
                                rates=(0.1,),
                                parameters=(0,),
                                grad_norms=(1.0,),
                                weight_norms=(1.0,),
                                update_norms=(0.1,),
                                moments={"exp_avg": norm},
                                state_step=float(step),
                            ),
                        ),
                    )
                    for step, norm in enumerate(norms, start=101)
                )
            }
        )
    )


def test_a_moment_that_grows_five_times_running_out_of_its_window_is_a_warning(trace_of):
    trace = trace_of(seen.without_a_state)
    steady = [1.0, 1.2, 0.9, 1.1] * 10
    (found,) = moments(trace, [*steady, *(1.1 * 1.8**i for i in range(1, 7))])

    assert (found.severity, found.fault) == ("warning", "moments unstable")
    assert 140 < found.step <= 147
    assert moments(trace, steady) == ()
    assert moments(trace, [*steady, 40.0, 1.0]) == ()
