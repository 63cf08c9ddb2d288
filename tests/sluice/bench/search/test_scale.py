"""The cost of scheduler decisions for many trials, on simulated workers."""

import pytest

from sluice.base.errors import ContractError
from sluice.bench.search.scale import measure_scale, time_restore
from sluice.bench.search.virtual_cluster import SimulatedStudy, VirtualCluster


@pytest.mark.slow
def test_every_combination_of_proposals_and_order_is_measured(tmp_path):
    costs = measure_scale(num_trials=8, num_workers=4, folder=tmp_path)

    assert [(cost.proposals, cost.ordered) for cost in costs] == [
        ("random", False),
        ("random", True),
        ("tpe", False),
        ("tpe", True),
    ]
    for cost in costs:
        # ASHA stops some trials after one epoch; one that is not stopped runs 27.
        assert 8 + 26 <= cost.num_results < 8 * 27
        assert cost.result_cpu_ms > 0
        assert cost.result_ms <= cost.slowest_decision_ms * 3
        assert min(cost.restore_s, cost.journal_mib) > 0


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
def test_restore_that_loses_a_report_is_an_error(tmp_path, ordered):
    """The last journal line is removed, as after a lost write of a disk."""
    case = SimulatedStudy(
        proposals="random", ordered=ordered, num_trials=6, num_workers=2, folder=tmp_path
    )
    opened = case.open()
    VirtualCluster(opened).run()
    opened.journal.close()
    seconds, restored = time_restore(case, opened.study)
    lines = case.journal_path.read_bytes().splitlines(keepends=True)
    case.journal_path.write_bytes(b"".join(lines[:-1]))

    assert seconds > 0
    assert [t.time for t in restored.trials] == [t.time for t in opened.study.trials]
    with pytest.raises(ContractError, match="1 of them differ"):
        time_restore(case, opened.study)
