"""REPRO-4: a training killed by SIGKILL at random moments resumes with identical bits."""

import pickle
import random
import signal
import subprocess
import sys
import time

import pytest

from sluice.models.settings import ModelSettings
from tests.sluice.training.test_fold_run import events
from tests.support.kill_server import ROOT, KillPlan, KillServer
from tests.support.killed_work import TrainWork

CASES = {
    f"{architecture}, {workers} loader workers": (architecture, workers)
    for architecture in ("lstm", "transformer")
    for workers in (0, 2)
}
FAST_CASES = [
    pytest.param(case, marks=[] if case == "lstm, 2 loader workers" else pytest.mark.exhaustive)
    for case in CASES
]
FEW_KILLS, MANY_KILLS = 2, 50


@pytest.fixture(scope="module")
def server():
    with KillServer() as server:
        yield server


def epochs_for(kills) -> int:
    """Return enough epochs that the last kill precedes the end; a kill costs about one epoch."""
    return 10 + 2 * kills


def make_work(specs, architecture, workers, *, epochs) -> TrainWork:
    (spec,) = specs(
        max_epochs=epochs,
        patience_epochs=epochs,
        num_rows=170,
        batch_rows=12,
        checkpoint_every_epochs=1,
        loader_workers=workers,
        model=ModelSettings(architecture=architecture, hidden=4, layers=2, dropout=0.2),
    )
    return TrainWork(spec=spec)


def kill_and_resume(server, specs, case, tmp_path, *, kills, seed):
    work = make_work(specs, *CASES[case], epochs=epochs_for(kills))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    killed = server.kill(
        KillPlan(
            work=work,
            reference_folder=whole,
            killed_folder=cut,
            kills=kills,
            num_parts=epochs_for(kills),
            seed=seed,
        )
    )
    expected, member = work(whole), work(cut)

    assert member.weights == expected.weights  # the SHA-256 of the file of weights
    assert (member.test_metrics, member.best_epoch) == (expected.test_metrics, expected.best_epoch)
    assert events(work.spec, member) == events(work.spec, expected)
    (folder,) = cut.iterdir()
    left = sorted(p.name for p in folder.iterdir())
    assert left == ["events.ndjson", "lock", "result.json", "traces"]
    return killed


@pytest.mark.slow
@pytest.mark.parametrize("case", FAST_CASES)
def test_training_killed_twice_ends_with_identical_bits(
    case, server, specs, tmp_path, record_property
):
    killed = kill_and_resume(server, specs, case, tmp_path, kills=FEW_KILLS, seed=len(case))

    assert killed.kills == FEW_KILLS
    assert killed.longest_orphan_s < 1  # the watchdog of torch takes five seconds
    record_property("measurement", killed.summary(case))


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_training_killed_50_times_ends_with_identical_bits(
    case, server, specs, tmp_path, record_property
):
    killed = kill_and_resume(server, specs, case, tmp_path, kills=MANY_KILLS, seed=1)

    assert killed.kills == MANY_KILLS
    assert killed.longest_orphan_s < 1
    assert killed.from_outside >= 15
    # Kills happened in every phase, not only between two epochs.
    assert {"fitting", "checkpoint", "log"} <= killed.phases.keys()
    assert min(killed.phases[place] for place in ("fitting", "checkpoint", "log")) >= 5
    record_property("measurement", killed.summary(case))


TRAIN_SCRIPT = """
import pickle, sys
work, folder = pickle.load(sys.stdin.buffer)
print(flush=True)
work(folder)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["lstm", "transformer"])
def test_new_interpreter_resumes_where_another_was_killed(architecture, specs, tmp_path):
    work, kills = make_work(specs, architecture, 2, epochs=40), 0
    waits_s = [random.Random(3).uniform(0, 0.4) for _ in range(3)]
    for wait_s in waits_s:
        process = subprocess.Popen(
            [sys.executable, "-c", TRAIN_SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        process.stdin.write(pickle.dumps((work, tmp_path / "cut")))
        process.stdin.close()
        process.stdout.readline()
        time.sleep(wait_s)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()

    assert kills == 3
    assert work(tmp_path / "cut").weights == work(tmp_path / "whole").weights
