"""Runs challengers in their own processes: starts, monitors, restarts and ends them.

A supervisor thread belongs to each process: it starts it, checks it a few times a second, and
reaps it. It restarts the process after a delay that doubles each time, a bounded number of
times; meanwhile every request to it fails immediately and production answers.

Shape legend: M = networks, N = windows, L = rows of a window, D = features, O = outputs.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sluice.base.digests import short
from sluice.base.errors import ContractError
from sluice.serving.arm import EnsembleOutput
from sluice.serving.arm_environment import arm_environment
from sluice.serving.arm_process import ArmProcess
from sluice.serving.contract import InputContract
from sluice.serving.deployed import Pause, ServedModel
from sluice.serving.settings import ServingSettings
from sluice.serving.wire_protocol import LoaderSpec, ModelInfo

Isolate = Callable[[str, threading.Event], ServedModel]
"""Loads the model of a candidate digest in its own process, or raises ``SluiceError``.

Called from a thread; returns soon after the event is set."""

_CHECK_INTERVAL_S = 0.25
"""Interval of the checks: memory, end, and pending responses of a process."""
_HANGS_AFTER = 10
"""Number of deadlines after which a process with a pending response counts as hung."""
_JOIN_TIMEOUT_S = 5.0
"""Longest wait for a supervisor at the end: one check and one kill."""


@dataclass(slots=True, eq=False)
class _SupervisorState:
    """State shared by the supervisor and the model; neither keeps the other alive."""

    stop: threading.Event = field(default_factory=threading.Event)
    settled: threading.Event = field(default_factory=threading.Event)
    """Set once the model has loaded or failed to."""

    info: ModelInfo | None = None
    process: ArmProcess | None = None
    """Last process that was ready; it may have ended since."""

    problem: str = ""
    """Why it cannot predict; empty while it can."""


class IsolatedModel:
    """A model in another process, which ends when this object is not referenced any more."""

    def __init__(self, state: _SupervisorState, info: ModelInfo) -> None:
        self._state = state
        self._info = info
        weakref.finalize(self, state.stop.set)

    @property
    def version(self) -> int:
        """Version number."""
        return self._info.version

    @property
    def candidate(self) -> str:
        """Candidate digest."""
        return self._info.candidate

    @property
    def contract(self) -> InputContract:
        """Input contract."""
        return self._info.contract

    @property
    def target(self) -> str:
        """Name of the predicted column."""
        return self._info.target

    @property
    def problem(self) -> str:
        """Why it cannot predict, in a sentence; empty while it can."""
        return self._state.problem

    def predict(self, x_NLD: NDArray[np.float32], pause: Pause | None) -> EnsembleOutput:
        """Return the output of each network (M, N, O).

        Raises:
            NetworkFailed: A network raised, or the process has ended.
        """
        process = self._state.process
        assert process is not None, "a model exists once its process is ready"
        return process.predict(x_NLD, pause)


class Isolation:
    """Starts challenger processes; a context manager that ends the remaining ones."""

    def __init__(self, loader: LoaderSpec, settings: ServingSettings) -> None:
        """Prepare; nothing is started.

        Args:
            loader: How a process loads its model.
            settings: Limits of memory and time.
        """
        self._loader = loader
        self._settings = settings
        self._supervisors: list[tuple[_SupervisorState, threading.Thread]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for state, _ in self._supervisors:
            state.stop.set()
        for _, thread in self._supervisors:
            thread.join(_JOIN_TIMEOUT_S)

    def load(self, candidate: str, abandoned: threading.Event) -> IsolatedModel:
        """Return the model of a candidate digest once its process is ready.

        Args:
            candidate: Candidate digest.
            abandoned: Set when the model is not needed any more.

        Raises:
            ContractError: The model does not load, or its process crashes or exceeds its limits
                of time or memory while loading.
        """
        state = _SupervisorState()
        supervisor = threading.Thread(
            target=_supervise,
            args=(state, self._loader, candidate, self._settings),
            name=f"supervisor-{candidate[:12]}",
            daemon=True,
        )
        self._supervisors = [(k, t) for k, t in self._supervisors if t.is_alive()] + [
            (state, supervisor)
        ]
        supervisor.start()
        while not state.settled.wait(_CHECK_INTERVAL_S / 5):
            if abandoned.is_set():
                state.stop.set()
        if state.info is None:
            raise ContractError(
                f"The candidate {short(candidate)} must load in its own process, but that process "
                f"{state.problem}.",
                fix="Fix the model, or end its rollout: sluice rollout abort.",
            )
        return IsolatedModel(state, state.info)


def _supervise(
    state: _SupervisorState, loader: LoaderSpec, candidate: str, settings: ServingSettings
) -> None:
    """Keep a process running until it is stopped or has ended too often."""
    delay_s = settings.challenger_restart_delay_s
    for restart in range(settings.max_challenger_restarts + 1):
        try:
            reason = _run_process(state, loader, candidate, settings)
        except OSError as error:
            reason = f"could not be started: {error.strerror or error}"
        if state.info is None:
            state.problem = reason
            state.settled.set()
            return
        left = settings.max_challenger_restarts - restart
        after = f"it restarts in {delay_s:g} s" if left else "it does not restart"
        state.problem = (
            f"The challenger's process {reason}; {after} ({restart} of "
            f"{settings.max_challenger_restarts} restarts so far). Production answers in its place."
        )
        if state.stop.wait(delay_s):
            return
        delay_s *= 2


def _run_process(
    state: _SupervisorState, loader: LoaderSpec, candidate: str, settings: ServingSettings
) -> str:
    """Start a process, monitor it until it ends and return how it ended."""
    environment = arm_environment(os.environ, more=settings.challenger_environment)
    process = ArmProcess(loader, candidate, environment=environment)
    try:
        found = _wait_until_ready(process, state, settings)
        if isinstance(found, str):
            process.end(found)
        elif found.candidate != candidate or state.info not in (None, found):
            process.end(f"loaded {short(found.candidate)} version {found.version} instead")
        else:
            base = process.resident_bytes()
            state.process, state.info, state.problem = process, found, ""
            state.settled.set()
            process.end(_monitor(process, state, settings, base=base))
    finally:
        process.end("was stopped")
    return process.exit_reason or ""


def _wait_until_ready(
    process: ArmProcess, state: _SupervisorState, settings: ServingSettings
) -> ModelInfo | str:
    """Wait until the process is ready; return a text if it fails."""
    deadline = time.monotonic() + settings.challenger_load_timeout_s
    while not state.stop.is_set():
        found = process.wait_for_model(_CHECK_INTERVAL_S)
        if found is not None:
            return found
        excess = _memory_excess(process, settings, base=0)
        if excess:
            return excess
        if time.monotonic() > deadline:
            return f"was ended: it did not load within {settings.challenger_load_timeout_s:g} s"
    return "was stopped"


def _monitor(
    process: ArmProcess, state: _SupervisorState, settings: ServingSettings, *, base: int
) -> str:
    """Monitor the process and return why it must be ended; empty when it ended."""
    hangs_s = _HANGS_AFTER * settings.challenger_deadline_s
    while not state.stop.wait(_CHECK_INTERVAL_S):
        if process.has_ended():
            return ""
        excess = _memory_excess(process, settings, base=base)
        if excess:
            return excess
        if process.pending_s(time.monotonic()) > hangs_s:
            return f"was ended: it hung for {hangs_s:g} s"
    return "was stopped"


def _memory_excess(process: ArmProcess, settings: ServingSettings, *, base: int) -> str:
    grown = process.resident_bytes() - base
    if grown <= settings.max_challenger_memory_bytes:
        return ""
    return (
        f"was ended: it took {grown / 2**20:,.0f} MiB of memory, the limit is "
        f"{settings.max_challenger_memory_bytes / 2**20:,.0f} MiB"
    )
