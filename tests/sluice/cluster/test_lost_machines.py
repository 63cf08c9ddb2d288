"""The loss of a machine during training loses no finished fold run and changes no bit."""

from collections import Counter

import pytest

from sluice.cluster.settings import ComputeSettings
from sluice.training.parallel import train_members
from tests.sluice.training.conftest import specs as specs


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_machine_lost_during_training_changes_no_bit(two_machines, specs):
    """The fold run resumes from its checkpoint elsewhere; finished ones are not trained again."""
    options = {"seeds": (0, 1), "folds": 2, "max_epochs": 5}
    run_specs, received = specs("ray", **options, pause_s=0.06), []

    def record_event(event):
        received.append(event)
        running = {(e.seed, e.fold_id) for e in received if e.kind == "epoch"}
        finished = [e for e in received if e.kind == "finished"]
        if two_machines.second is not None and finished and len(running) - len(finished) == 2:
            two_machines.lose(gracefully=False)

    compute = ComputeSettings(address=two_machines.address)
    members, reused = train_members(run_specs, compute=compute, on_event=record_event)
    one = ComputeSettings(workers=1)
    local, _ = train_members(specs("local", **options), compute=one, on_event=[].append)

    assert two_machines.second is None
    assert [(m.weights, m.test_metrics) for m in members] == [
        (m.weights, m.test_metrics) for m in local
    ]
    assert reused == 0
    lost = [e for e in received if e.kind == "lost"]
    assert len(lost) == 1
    assert "worker on Ray was lost (Actor" in lost[0].reason
    num_starts = Counter((e.seed, e.fold_id) for e in received if e.kind == "started")
    assert [fold_run for fold_run, times in num_starts.items() if times > 1] == [
        (lost[0].seed, lost[0].fold_id)
    ]
    assert [e.epochs_done for e in received if e.kind == "started" and e.epochs_done] != []
    assert train_members(run_specs, compute=compute, on_event=record_event)[1] == 4
