"""The cost of statistics stays within its share of the run time (TRACE-1)."""

import itertools

from sluice.trace.sampling.budget import SamplingBudget


def test_other_samples_do_not_delay_statistics():
    budget = SamplingBudget(cost_share=1e-3, max_interval=100)
    sampled, is_due = [], True
    for number in range(600):
        if is_due:
            sampled.append(number)
        cost_ns = 100 if is_due or number % 30 == 0 else 0
        is_due = budget.add_step(step_ns=1000, cost_ns=cost_ns)

    assert sampled[:9] == [0, 1, 2, 3, 6, 11, 22, 43, 86]
    assert max(b - a for a, b in itertools.pairwise(sampled)) <= 100


def test_norms_are_always_sampled_and_full_samples_stay_within_the_budget():
    budget = SamplingBudget(cost_share=1e-3, max_interval=100)
    full_samples, norm_samples, is_due = [], [], True
    for number in range(2000):
        if is_due:
            (full_samples if budget.is_next_sample_full else norm_samples).append(number)
        # A full sample costs a quarter of a step: one in 250 steps stays within the budget.
        cost_ns = (250 if budget.is_next_sample_full else 20) if is_due else 0
        is_due = budget.add_step(step_ns=1000 + cost_ns, cost_ns=cost_ns)

    late_samples = [number for number in full_samples if number > 400]
    assert {b - a for a, b in itertools.pairwise(late_samples)} == {297}
    assert max(b - a for a, b in itertools.pairwise(sorted(full_samples + norm_samples))) <= 100
