"""How a worker's process ends."""

import pickle

import pytest

from sluice.cluster.process import WorkerProcess
from tests.support.jobs import TerminatedLate, TerminatedTwice


@pytest.mark.parametrize(("job", "status"), [(TerminatedTwice, 143), (TerminatedLate, 0)])
def test_a_sigterm_at_the_end_interrupts_nothing(job, status, tmp_path, capfd):
    """Else it is raised in what torch does at exit, with a traceback on the terminal."""
    process = WorkerProcess.start(["tests.support.jobs"])
    process.pipe.send_bytes(pickle.dumps(job(tmp_path / "done")))
    process.pipe.recv_bytes()
    process.pipe.close()

    assert process.popen.wait(timeout=60) == status
    assert (tmp_path / "done").exists()
    assert capfd.readouterr() == ("", "")
