"""The cost of resumable wrappers of schedulers, with Ray workers."""

import pytest

from sluice.bench.search.wrapper_cost import measure_wrapper


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_variant_trains_the_same_trials(tmp_path):
    """Of six trials, the first three and those in the better half run nine epochs, others one."""
    cost = measure_wrapper(
        num_trials=6,
        num_workers=2,
        cpus_per_worker=0.5,
        sleep_s=0.01,
        num_rounds=1,
        folder=tmp_path,
    )

    journals = sorted(path.parent.name for path in tmp_path.glob("*/journal.jsonl"))
    assert journals == ["arrival-0", "ordered-0"]
    assert (cost.num_results - 6) % 8 == 0
    assert 6 + 3 * 8 <= cost.num_results < 6 * 9
    assert cost.bare_s > 0.01 * cost.num_results / 2
    assert cost.arrival_range == (cost.arrival_ratio, cost.arrival_ratio)
    assert min(cost.bare_cpu_ms, cost.arrival_cpu_ms, cost.ordered_cpu_ms) > 0
