"""First moments of Adam that grow rapidly (TRACE-13)."""

from sluice.trace.records.step_statistics import OptimizerStatistics, StepStatistics
from sluice.trace.rules._helpers.optimizer_steps import stepping_optimizers
from sluice.trace.rules.optimizers.unstable_adam_moments import UNSTABLE_ADAM_MOMENTS
from tests.support.traced import loading_and_resuming as programs


def find_unstable_moments(trace, norms):
    """Return the findings for a trace whose first moments have these norms."""
    optimizer = stepping_optimizers(trace)[0]  # an optimizer of another test may come before it
    return UNSTABLE_ADAM_MOMENTS(
        trace.model_copy(
            update={
                "statistics": tuple(
                    StepStatistics(
                        step=step,
                        optimizers=(
                            OptimizerStatistics(
                                optimizer=optimizer,
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


def test_a_moment_that_grows_five_times_in_a_row_is_a_warning(trace_of):
    trace = trace_of(programs.optimizer_without_state)
    stable_norms = [1.0, 1.2, 0.9, 1.1] * 10
    (found,) = find_unstable_moments(trace, [*stable_norms, *(1.1 * 1.8**i for i in range(1, 7))])

    assert (found.severity, found.fault) == ("warning", "unstable Adam moments")
    assert 140 < found.step <= 147
    assert found.evidence["usual_norm"] == 1.05
    assert find_unstable_moments(trace, stable_norms) == ()
    assert find_unstable_moments(trace, [*stable_norms, 40.0, 1.0]) == ()
