"""Runs challengers in their own processes: starts, monitors, restarts and ends them.

Each process has a supervisor thread, which starts the process, checks it several times a second
and cleans up after it. If the process ends, the supervisor restarts it after a delay that doubles
each time, up to a maximum number of restarts. While no process runs, every request to the
challenger fails immediately and production answers.

Shape legend: M = networks, N = elements of a request, such as windows, O = outputs.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from sluice.base.digests import short
from sluice.base.errors import ContractError
from sluice.serving.arm import EnsembleOutput
from sluice.serving.arm_environment import arm_environment
from sluice.serving.arm_process import ArmProcess
from sluice.serving.contract import ModelContract, OutputContract
from sluice.serving.deployed import Pause, ServedModel
from sluice.serving.model_arrays import ModelArrays
from sluice.serving.settings import ServingSettings
from sluice.serving.wire_protocol import LoaderSpec, ModelInfo

Isolate = Callable[[str, threading.Event], ServedModel]
"""Function that loads the model of a candidate digest in its own process.

The function is called from a thread with the digest and an event. It returns soon after the event
is set, and may raise ``SluiceError``."""

_CHECK_INTERVAL_S = 0.25
"""Interval at which a process is checked [s]: its memory, whether it has ended, and how long a
response has been pending."""
_HANG_DEADLINES = 10
"""Time for which a response may be pending before the process counts as hung [multiples of
``challenger_deadline_s``]."""
_JOIN_TIMEOUT_S = 5.0
"""Maximum wait for a supervisor thread when the server ends [s]. The thread ends after at most one
more check and the kill of its process."""


@dataclass(slots=True, eq=False)
class _SupervisorState:
    """State shared by a supervisor and its model, so that neither keeps the other alive."""

    stop_event: threading.Event = field(default_factory=threading.Event)
    loading_done_event: threading.Event = field(default_factory=threading.Event)
    """Event that is set once the model has loaded or has failed to load."""

    model_info: ModelInfo | None = None
    """Description of the model; None until it has loaded once."""

    process: ArmProcess | None = None
    """The process that was ready last; it may have ended since."""

    problem: str = ""
    """Reason why the model cannot predict, in a sentence; empty while it can. Before the model has
    loaded once, the ``exit_reason`` of its process."""


class IsolatedModel:
    """A model in another process. The process ends once this object is no longer referenced."""

    def __init__(self, state: _SupervisorState, info: ModelInfo) -> None:
        self._state = state
        self._info = info
        weakref.finalize(self, state.stop_event.set)

    @property
    def version(self) -> int:
        """Version number."""
        return self._info.version

    @property
    def candidate(self) -> str:
        """Candidate digest."""
        return self._info.candidate

    @property
    def contract(self) -> ModelContract:
        """Input contract."""
        return self._info.contract

    @property
    def codec(self) -> None:
        """None: production decodes the requests of both arms."""
        return None

    @property
    def embedder(self) -> None:
        """None: only production embeds requests."""
        return None

    @property
    def target(self) -> str:
        """Name of the predicted column."""
        return self._info.target

    @property
    def output(self) -> OutputContract:
        """Meaning of the output values."""
        return self._info.output

    @property
    def problem(self) -> str:
        """Reason why the model cannot predict, in a sentence; empty while it can."""
        return self._state.problem

    def predict(self, x: ModelArrays, pause: Pause | None) -> EnsembleOutput:
        """Return the output of each network (M, N, O).

        Raises:
            NetworkFailed: A network raised, or the process has ended.
        """
        process = self._state.process
        assert process is not None, "a model exists once its process is ready"
        return process.predict(x, pause)


class Isolation:
    """Starts challenger processes. It is a context manager, which ends all of them at its exit."""

    def __init__(self, loader: LoaderSpec, settings: ServingSettings) -> None:
        """Store the arguments; ``load`` starts a process.

        Args:
            loader: How a process loads its model.
            settings: Limits of the memory and time of a process.
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
            state.stop_event.set()
        for _, thread in self._supervisors:
            thread.join(_JOIN_TIMEOUT_S)

    def load(self, candidate: str, cancel_event: threading.Event) -> IsolatedModel:
        """Start a process for a candidate digest, and return its model once the process is ready.

        Args:
            candidate: Candidate digest.
            cancel_event: Event that another thread sets if the model is no longer needed.

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
        self._supervisors = [
            *(
                (running_state, thread)
                for running_state, thread in self._supervisors
                if thread.is_alive()
            ),
            (state, supervisor),
        ]
        supervisor.start()
        while not state.loading_done_event.wait(_CHECK_INTERVAL_S / 5):
            if cancel_event.is_set():
                state.stop_event.set()
        if state.model_info is None:
            raise ContractError(
                f"The candidate {short(candidate)} did not load in its own process: the process "
                f"{state.problem}.",
                fix="Fix the model, or end its rollout: sluice rollout abort.",
            )
        return IsolatedModel(state, state.model_info)


def _supervise(
    state: _SupervisorState, loader: LoaderSpec, candidate: str, settings: ServingSettings
) -> None:
    """Keep a process running until ``stop_event`` is set or no further restart is allowed.

    If the model does not load in the first process, no further process is started.
    """
    delay_s = settings.challenger_restart_delay_s
    for num_restarts in range(settings.max_challenger_restarts + 1):
        try:
            reason = _run_process(state, loader, candidate, settings)
        except OSError as error:
            reason = f"could not be started: {error.strerror or error}"
        if state.model_info is None:
            state.problem = reason
            state.loading_done_event.set()
            return
        is_last = num_restarts == settings.max_challenger_restarts
        plan = "it does not restart" if is_last else f"it restarts in {delay_s:g} s"
        state.problem = (
            f"The challenger's process {reason}; {plan} ({num_restarts} of "
            f"{settings.max_challenger_restarts} restarts so far). Production answers in its place."
        )
        if state.stop_event.wait(delay_s):
            return
        delay_s *= 2


def _run_process(
    state: _SupervisorState, loader: LoaderSpec, candidate: str, settings: ServingSettings
) -> str:
    """Start a process, monitor it until it ends, and return how it ended."""
    environment = arm_environment(os.environ, extra_names=settings.challenger_environment)
    process = ArmProcess(loader, candidate, environment=environment)
    try:
        info = _wait_until_ready(process, state, settings)
        if isinstance(info, str):
            process.end(info)
        elif info.candidate != candidate or state.model_info not in (None, info):
            process.end(f"loaded {short(info.candidate)} version {info.version} instead")
        else:
            bytes_when_ready = process.resident_bytes()
            state.process, state.model_info, state.problem = process, info, ""
            state.loading_done_event.set()
            process.end(_monitor(process, state, settings, bytes_when_ready=bytes_when_ready))
    finally:
        process.end("was stopped")
    return process.exit_reason or ""


def _wait_until_ready(
    process: ArmProcess, state: _SupervisorState, settings: ServingSettings
) -> ModelInfo | str:
    """Wait until the process is ready, and return its model's description.

    Returns a text if the process fails: how it ended or why it must be ended.
    """
    deadline = time.monotonic() + settings.challenger_load_timeout_s
    while not state.stop_event.is_set():
        info = process.wait_for_model(_CHECK_INTERVAL_S)
        if info is not None:
            return info
        excess = _describe_memory_excess(process, settings, bytes_when_ready=0)
        if excess:
            return excess
        if time.monotonic() > deadline:
            return f"was ended: it did not load within {settings.challenger_load_timeout_s:g} s"
    return "was stopped"


def _monitor(
    process: ArmProcess,
    state: _SupervisorState,
    settings: ServingSettings,
    *,
    bytes_when_ready: int,
) -> str:
    """Monitor the process and return why it must be ended; "" if it ended by itself."""
    max_pending_s = _HANG_DEADLINES * settings.challenger_deadline_s
    while not state.stop_event.wait(_CHECK_INTERVAL_S):
        if process.has_ended():
            return ""
        excess = _describe_memory_excess(process, settings, bytes_when_ready=bytes_when_ready)
        if excess:
            return excess
        if process.pending_s(time.monotonic()) > max_pending_s:
            return f"was ended: it hung for {max_pending_s:g} s"
    return "was stopped"


def _describe_memory_excess(
    process: ArmProcess, settings: ServingSettings, *, bytes_when_ready: int
) -> str:
    """Return why the process must be ended if its memory grew too much, else "".

    Args:
        process: The process.
        settings: Maximum growth.
        bytes_when_ready: Memory of the process when its model was loaded, from which the growth
            is measured; 0 while the model loads.
    """
    growth_bytes = process.resident_bytes() - bytes_when_ready
    if growth_bytes <= settings.max_challenger_memory_bytes:
        return ""
    return (
        f"was ended: its memory grew by {growth_bytes / 2**20:,.0f} MiB, the limit is "
        f"{settings.max_challenger_memory_bytes / 2**20:,.0f} MiB"
    )
