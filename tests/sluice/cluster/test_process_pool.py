"""Worker processes of this machine are reused, replaced if lost, and ended with their pool."""

import os

import psutil
import pytest

from sluice.base.cpu_count import count_cores
from sluice.base.errors import ContractError, SettingsError, TrainingFailed
from sluice.cluster.jobs import JobProgress, JobResult, WorkerLost
from sluice.cluster.process_pool import count_processes, open_process_pool
from sluice.cluster.settings import ComputeSettings
from tests.support.jobs import DieInFirstCalls, Fail, Square

TWO = ComputeSettings(workers=2, cpus_per_worker=0.5, retries=2)


def messages_until_result(pool):
    messages = [pool.next_message()]
    while not isinstance(messages[-1], JobResult):
        messages.append(pool.next_message())
    return messages


def test_a_process_runs_one_job_after_another_and_sends_progress():
    with open_process_pool(TWO, max_workers=1, imports=("tests.support.jobs",)) as pool:
        for number in (3, 4):
            assert pool.has_capacity()
            pool.submit(number, Square(number))
            assert not pool.has_capacity()
            assert messages_until_result(pool) == [
                JobProgress(key=number, message=number),
                JobResult(key=number, result=number**2),
            ]


@pytest.mark.slow
def test_a_job_whose_process_is_lost_is_retried_up_to_the_limit(tmp_path):
    with open_process_pool(TWO, max_workers=2, imports=("json",)) as pool:
        pool.submit("x", DieInFirstCalls(2, tmp_path / "count"))
        first, second, done = messages_until_result(pool)

        assert first == WorkerLost(
            key="x",
            description="process ended with status 3 and no result",
            cause="The process could not start, or the workload's code called exit.",
            num_times_lost=1,
            will_retry=True,
        )
        assert (second.num_times_lost, second.will_retry) == (2, True)
        assert psutil.pid_exists(done.result)
        pool.submit("y", DieInFirstCalls(99, tmp_path / "always"))
        assert [pool.next_message().will_retry for _ in range(3)] == [True, True, False]
        pool.submit("z", Square(5))  # other jobs still run
        assert messages_until_result(pool)[-1].result == 25
    assert not psutil.pid_exists(done.result)
    assert (tmp_path / "always").read_text() == "xxx"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("ContractError", ContractError, "the rows are wrong"),
        ("ValueError", TrainingFailed, "A worker could not run its job: ValueError: the user's"),
    ],
)
def test_an_error_of_a_job_is_raised_by_the_pool(name, kind, message):
    with open_process_pool(TWO, max_workers=1, imports=("json",)) as pool:
        pool.submit("x", Fail(name))
        with pytest.raises(kind, match=message):
            pool.next_message()


def test_the_number_of_processes_is_limited_by_cores_and_settings():
    cores = count_cores()

    assert cores == len(os.sched_getaffinity(0))
    assert count_processes(ComputeSettings()) == cores
    assert count_processes(ComputeSettings(workers=1)) == 1
    assert count_processes(ComputeSettings(cpus_per_worker=float(cores))) == 1
    with pytest.raises(SettingsError, match=r"1000 CPU \(cpus_per_worker\), but this machine has"):
        count_processes(ComputeSettings(cpus_per_worker=1000.0))
