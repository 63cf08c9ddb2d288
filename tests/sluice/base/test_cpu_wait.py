"""The time for which a process waits for a CPU is what is missing from its CPU time."""

import os
import subprocess
import sys
import time

import pytest

from sluice.base.cpu_wait import cpu_wait_s

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux counts it")
BUSY_S = 0.5


@pytest.fixture
def one_contested_cpu():
    """Two other processes on the one CPU that this process may use."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    script = "print(flush=True)\nwhile True: pass"
    others = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for other in others:
            other.stdout.readline()
        yield
    finally:
        os.sched_setaffinity(0, cpus)
        for other in others:
            other.kill()
            other.communicate()


@pytest.mark.slow
@pytest.mark.usefixtures("one_contested_cpu")
def test_wall_time_is_cpu_time_plus_waiting_time():
    wall, waited = time.monotonic(), cpu_wait_s()
    used = time.process_time()
    while time.process_time() - used < BUSY_S:
        pass
    wall, waited = time.monotonic() - wall, cpu_wait_s() - waited

    assert waited > BUSY_S / 2
    assert wall - waited == pytest.approx(BUSY_S, rel=0.2)
    assert cpu_wait_s(os.getpid()) == pytest.approx(cpu_wait_s(), abs=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("one_contested_cpu")
def test_sleeping_is_not_waiting():
    waited = cpu_wait_s()
    time.sleep(0.5)
    assert cpu_wait_s() - waited < 0.25


def test_a_process_that_does_not_exist_waits_for_nothing():
    assert cpu_wait_s(2**22 + 1) == 0.0
