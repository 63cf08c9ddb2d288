"""How many trials run at a time, and when somebody asked for more workers than that."""

import pytest

from sluice.cluster.settings import ComputeSettings
from sluice.tuning.lanes import idle_workers, most_at_a_time
from sluice.tuning.search import run_search
from tests.sluice.tuning.toy_space import BASE, ignore, settings, space
from tests.support.toy_search import Toy


@pytest.mark.parametrize(
    ("own", "most"),
    [
        (settings(20), 4),
        (settings(20, concurrent_trials=8), 8),
        (settings(2), 2),
        (settings(16, "pbt"), 16),
    ],
)
def test_a_population_is_under_way_as_a_whole_and_other_trials_as_many_as_asked(
    own, most, tmp_path, monkeypatch
):
    class Asked(Exception):
        pass

    def opened(*_args, most):
        raise Asked(most)

    monkeypatch.setattr("sluice.tuning.search.open_ray_segments", opened)
    with pytest.raises(Asked, match=f"^{most}$"):
        run_search(
            Toy(), space(), BASE, own, folder=tmp_path, hear=ignore, compute=ComputeSettings()
        )
    assert most_at_a_time(own) == most


@pytest.mark.parametrize(
    ("own", "workers", "said"),
    [
        (settings(20), 8, "at most 4 busy (search.concurrent_trials)"),
        (settings(20), 4, ""),
        (settings(20), None, ""),
        (settings(16, "pbt"), 8, ""),
        (settings(8, "pbt"), 9, "at most 8 busy: it has no more trials"),
        (settings(3), 4, "at most 3 busy: it has no more trials"),
    ],
)
def test_workers_without_work_are_said(own, workers, said):
    found = idle_workers(own, ComputeSettings(workers=workers))
    assert said in found
    assert bool(found) == bool(said)
