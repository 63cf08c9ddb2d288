"""Measurement of the time for which a process waits for a CPU."""

import os
import subprocess
import sys
import time

import pytest

from sluice.base.cpu_wait import cpu_wait_s

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="cpu_wait_s reads Linux scheduler statistics"
)
BUSY_S = 0.5


@pytest.fixture
def contended_cpu():
    """Restrict this process to one CPU, on which two other processes run busy loops."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    script = "print(flush=True)\nwhile True: pass"
    busy_processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for process in busy_processes:
            process.stdout.readline()
        yield
    finally:
        os.sched_setaffinity(0, cpus)
        for process in busy_processes:
            process.kill()
            process.communicate()


@pytest.mark.slow
@pytest.mark.usefixtures("contended_cpu")
def test_cpu_wait_is_wall_time_minus_cpu_time():
    wall_s, wait_s = time.monotonic(), cpu_wait_s()
    start_cpu_s = time.process_time()
    while time.process_time() - start_cpu_s < BUSY_S:
        pass
    wall_s, wait_s = time.monotonic() - wall_s, cpu_wait_s() - wait_s

    assert wait_s > BUSY_S / 2
    assert wall_s - wait_s == pytest.approx(BUSY_S, rel=0.2)
    assert cpu_wait_s(os.getpid()) == pytest.approx(cpu_wait_s(), abs=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("contended_cpu")
def test_sleep_is_not_counted_as_cpu_wait():
    wait_s = cpu_wait_s()
    time.sleep(0.5)
    assert cpu_wait_s() - wait_s < 0.25


def test_cpu_wait_of_a_missing_process_is_0():
    assert cpu_wait_s(2**22 + 1) == 0.0
