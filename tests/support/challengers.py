"""Challengers without torch. They crash, hang or leak memory if an input has a certain value."""

import ctypes
import hashlib
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sluice.serving.contract import InputContract, OutputContract

CONTRACT = InputContract(columns=("a", "b"), seq_len=3)
NAMES = (
    "two",  # has faults only for the input values below
    "dies while loading",
    "hangs while loading",
    "raises while loading",
    "raises the first time",
    "curious",  # stores its environment variables in a file
)
# Input values that cause a fault. BABBLE writes an invalid message to all open file descriptors.
SEGFAULT, EXIT, LOOP, LEAK, RAISE, BABBLE, RETURN_PID, SPAWN = range(101, 109)
LEAK_BYTES = 2**24


def candidate(name: str) -> str:
    """Return the candidate digest of a name, without sluice.base.digests, which imports pandas."""
    return hashlib.sha256(name.encode()).hexdigest()


class FaultyChallenger:
    """Has two networks, which return v and 3 v for the first value v of the last row.

    Some values v cause a fault, see ``_run_fault``.
    """

    version = 2
    contract = CONTRACT
    codec = None
    target = "y"
    output = OutputContract()
    problem = ""

    def __init__(self, name: str) -> None:
        self.candidate = candidate(name)
        self.leaked_blocks: list[mmap.mmap] = []
        self.raises_at_next_call = name == "raises the first time"

    def predict(
        self, x_NLD: NDArray[np.float32], pause: Callable[[], object] | None
    ) -> NDArray[np.float64]:
        if self.raises_at_next_call:
            self.raises_at_next_call = False
            raise RuntimeError("not warm yet")
        for _ in range(2):  # once before each network
            if pause is not None:
                pause()
        values = x_NLD[:, -1, :1].astype(np.float64)
        for value in values.ravel():
            self._run_fault(int(value))
        if RETURN_PID in values:  # the mean over both networks is the process id
            values = np.full_like(values, os.getpid() / 2)
        return np.stack([values, 3 * values])

    def _run_fault(self, value: int) -> None:
        if value == SEGFAULT:
            ctypes.string_at(0)
        elif value == EXIT:
            os._exit(3)
        elif value == LOOP:
            while True:
                time.sleep(0.01)
        elif value == LEAK:
            block = mmap.mmap(-1, LEAK_BYTES)
            block.write(b"x" * LEAK_BYTES)
            self.leaked_blocks.append(block)
        elif value == RAISE:
            raise TypeError("secret payload")
        elif value == BABBLE:
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                try:
                    os.write(descriptor, b"\x00\x00\x00\x03zzz")
                except OSError:
                    continue
        elif value == SPAWN:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def load(digest: str, *, folder: str) -> FaultyChallenger:
    """Load the challenger of a digest; create a file in the folder whose name is the process id."""
    (Path(folder) / str(os.getpid())).touch()
    name = next(name for name in NAMES if candidate(name) == digest)
    if name == "dies while loading":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "hangs while loading":
        time.sleep(60)
    if name == "raises while loading":
        raise ImportError("no such code")
    if name == "curious":
        (Path(folder) / "environment.json").write_text(json.dumps(dict(os.environ)))
    return FaultyChallenger(name)
