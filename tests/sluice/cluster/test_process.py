"""A worker process that gets SIGTERM while it exits ends cleanly."""

import pickle

import pytest

from sluice.cluster.process import WorkerProcess
from tests.support.jobs import TerminatedLate, TerminatedTwice


@pytest.mark.parametrize(("job", "status"), [(TerminatedTwice, 143), (TerminatedLate, 0)])
def test_a_sigterm_during_exit_prints_no_traceback(job, status, tmp_path, capfd):
    """Otherwise the signal interrupts exit handlers of torch, which print a traceback."""
    process = WorkerProcess.start(["tests.support.jobs"])
    process.pipe.send_bytes(pickle.dumps(job(tmp_path / "done")))
    process.pipe.recv_bytes()
    process.pipe.close()

    assert process.popen.wait(timeout=60) == status
    assert (tmp_path / "done").exists()
    assert capfd.readouterr() == ("", "")
