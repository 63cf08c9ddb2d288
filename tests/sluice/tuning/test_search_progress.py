"""Progress messages of a search: one per ended trial and one per step of a population."""

import re

import pytest

from sluice.base.errors import SearchFailed
from sluice.tuning.search_progress import SearchProgress
from tests.sluice.tuning.toy_space import search, settings
from tests.support.toy_search import Toy


def collect_messages(folder, search_settings, toy=None):
    progress = SearchProgress(
        num_trials=search_settings.num_trials,
        is_population_based=search_settings.scheduler == "pbt",
    )
    lines: list[str] = []
    result = search(
        folder,
        search_settings,
        toy=toy,
        on_report=lambda _o, trials: lines.extend(progress.new_messages(trials)),
    )
    assert progress.num_ended == search_settings.num_trials
    return lines, result


def test_every_trial_is_reported_once_at_its_end(tmp_path):
    lines, result = collect_messages(tmp_path, settings(6))

    assert [line.split()[0] for line in lines] == [f"{n}/6" for n in range(1, 7)]
    assert {int(line.split()[2]) for line in lines} == {trial.id for trial in result.trials}


def test_population_is_reported_at_every_step(tmp_path):
    lines, result = collect_messages(tmp_path, settings(8, "pbt"))
    steps = [line for line in lines if line.startswith("population")]
    pattern = re.compile(
        r"after epoch (\d+): best loss (\S+) \(trial \d+\), worst loss of a trial that "
        r"keeps its weights (\S+) .*; (\d) copied another trial's weights \(([\d, ]+|none)\); "
        r"the values of (\d) of 8"
    )
    found = [pattern.search(line).groups() for line in steps]

    assert [int(epoch) for epoch, *_ in found] == [5, 10, 15, 20, 25, 27]
    assert all(float(best) < float(worst) for _, best, worst, *_ in found)
    for epoch, *_, number, moved, _descend in found:
        exploits = [e.trial for e in result.exploits if e.epoch == int(epoch)]
        assert int(number) == len(exploits)
        assert moved == (", ".join(map(str, exploits)) or "none")
    assert lines[-8:] == [line for line in lines if line not in steps]


def test_failed_trials_of_a_population_are_reported(tmp_path):
    lines, _ = collect_messages(tmp_path / "part", settings(8, "pbt"), Toy(nan_above=0.1))
    assert "nan" not in "".join(line for line in lines if line.startswith("population"))

    progress = SearchProgress(num_trials=4, is_population_based=True)
    messages: list[str] = []
    with pytest.raises(SearchFailed):
        search(
            tmp_path / "whole",
            settings(4, "pbt"),
            toy=Toy(nan_above=0.0),
            on_report=lambda _outcome, trials: messages.extend(progress.new_messages(trials)),
        )
    assert [line.split()[3] for line in messages] == ["failed"] * 4
