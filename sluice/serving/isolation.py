"""Challengers in processes of their own: started, watched, started again, and ended.

A thread, the keeper, stands behind each: it starts the process, looks at it a few times a second,
and reaps it. It starts it again after a pause that doubles, a bounded number of times; meanwhile
every request for it fails at once and production answers.

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
from sluice.serving.arm import Output
from sluice.serving.arm_environment import arm_environment
from sluice.serving.arm_process import ArmProcess
from sluice.serving.contract import InputContract
from sluice.serving.deployed import Pause, Served
from sluice.serving.frames import Card, Recipe
from sluice.serving.settings import ServingSettings

Isolate = Callable[[str, threading.Event], Served]
"""Returns the model of a candidate digest from a process of its own, or raises ``SluiceError``.

Called from a thread; it gives up soon once the event is set.
"""

_LOOK_S = 0.25
"""How often a process is looked at: its memory, its end, how long it owes an answer."""
_HANGS_AFTER = 10
"""Deadlines after which a process that owes an answer is taken to hang."""
_END_S = 5.0
"""Longest wait for a keeper at the end; it needs a look and a kill."""


@dataclass(slots=True, eq=False)
class _Kept:
    """What the keeper and the model share; neither holds the other."""

    stop: threading.Event = field(default_factory=threading.Event)
    settled: threading.Event = field(default_factory=threading.Event)
    """Set once it is known whether the model loads."""

    card: Card | None = None
    process: ArmProcess | None = None
    """The last one that was ready; it may have ended since."""

    problem: str = ""
    """Why it does not answer; "" while it does."""


class IsolatedModel:
    """A model whose networks live in another process; that one ends when nobody holds this."""

    def __init__(self, kept: _Kept, card: Card) -> None:
        self._kept = kept
        self._card = card
        weakref.finalize(self, kept.stop.set)

    @property
    def version(self) -> int:
        """Number of the version."""
        return self._card.version

    @property
    def candidate(self) -> str:
        """Candidate digest."""
        return self._card.candidate

    @property
    def contract(self) -> InputContract:
        """What it takes."""
        return self._card.contract

    @property
    def target(self) -> str:
        """Name of what is predicted."""
        return self._card.target

    @property
    def problem(self) -> str:
        """Why it does not answer, in a sentence; "" while it does."""
        return self._kept.problem

    def predict(self, x_NLD: NDArray[np.float32], pause: Pause | None) -> Output:
        """Return what each network says (M, N, O).

        Raises:
            NetworkFailed: A network raised, or the process has ended.
        """
        process = self._kept.process
        assert process is not None, "a model is made once its process is ready"
        return process.ask(x_NLD, pause)


class Isolation:
    """Starts challengers; use as a context manager, which ends all that are left."""

    def __init__(self, recipe: Recipe, settings: ServingSettings) -> None:
        """Prepare; nothing is started.

        Args:
            recipe: How a process gets at a model.
            settings: Limits of memory and time.
        """
        self._recipe = recipe
        self._settings = settings
        self._keepers: list[tuple[_Kept, threading.Thread]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for kept, _ in self._keepers:
            kept.stop.set()
        for _, thread in self._keepers:
            thread.join(_END_S)

    def load(self, candidate: str, abandoned: threading.Event) -> IsolatedModel:
        """Return the model of a candidate digest once its process is ready.

        Args:
            candidate: What to load.
            abandoned: Set when nobody wants it any more.

        Raises:
            ContractError: It does not load, or its process crashes or takes too much time or
                memory while it does.
        """
        kept = _Kept()
        keeper = threading.Thread(
            target=_keep,
            args=(kept, self._recipe, candidate, self._settings),
            name=f"keeper-{candidate[:12]}",
            daemon=True,
        )
        self._keepers = [(k, t) for k, t in self._keepers if t.is_alive()] + [(kept, keeper)]
        keeper.start()
        while not kept.settled.wait(_LOOK_S / 5):
            if abandoned.is_set():
                kept.stop.set()
        if kept.card is None:
            raise ContractError(
                f"The candidate {short(candidate)} must load in a process of its own, and its "
                f"process {kept.problem}.",
                fix="Mend the model, or end its rollout: sluice rollout abort.",
            )
        return IsolatedModel(kept, kept.card)


def _keep(kept: _Kept, recipe: Recipe, candidate: str, settings: ServingSettings) -> None:
    """Keep a process running until it is stopped or has ended too often."""
    pause_s = settings.challenger_pause_s
    for restart in range(settings.challenger_restarts + 1):
        try:
            how = _live(kept, recipe, candidate, settings)
        except OSError as error:
            how = f"could not be started: {error.strerror or error}"
        if kept.card is None:
            kept.problem = how
            kept.settled.set()
            return
        left = settings.challenger_restarts - restart
        after = f"it is started again in {pause_s:g} s" if left else "it is not started again"
        kept.problem = (
            f"The challenger's process {how}; {after} ({restart} of "
            f"{settings.challenger_restarts} restarts so far). Production answers for it."
        )
        if kept.stop.wait(pause_s):
            return
        pause_s *= 2


def _live(kept: _Kept, recipe: Recipe, candidate: str, settings: ServingSettings) -> str:
    """Start a process, watch it to its end and return how it ended."""
    environment = arm_environment(os.environ, more=settings.challenger_environment)
    process = ArmProcess(recipe, candidate, environment=environment)
    try:
        found = _loaded(process, kept, settings)
        if isinstance(found, str):
            process.end(found)
        elif found.candidate != candidate or kept.card not in (None, found):
            process.end(f"loaded {short(found.candidate)} version {found.version} instead")
        else:
            base = process.resident_bytes()
            kept.process, kept.card, kept.problem = process, found, ""
            kept.settled.set()
            process.end(_watched(process, kept, settings, base=base))
    finally:
        process.end("was stopped")
    return process.how or ""


def _loaded(process: ArmProcess, kept: _Kept, settings: ServingSettings) -> Card | str:
    """Wait until it is ready; a text says why it is not."""
    late = time.monotonic() + settings.challenger_load_s
    while not kept.stop.is_set():
        found = process.card(_LOOK_S)
        if found is not None:
            return found
        too_much = _too_much(process, settings, base=0)
        if too_much:
            return too_much
        if time.monotonic() > late:
            return f"was ended: it had not loaded after {settings.challenger_load_s:g} s"
    return "was stopped"


def _watched(process: ArmProcess, kept: _Kept, settings: ServingSettings, *, base: int) -> str:
    """Look until it must be ended, and say why; "" when it ended by itself."""
    hangs_s = _HANGS_AFTER * settings.challenger_deadline_s
    while not kept.stop.wait(_LOOK_S):
        if process.has_ended():
            return ""
        too_much = _too_much(process, settings, base=base)
        if too_much:
            return too_much
        if process.asked_s(time.monotonic()) > hangs_s:
            return f"was ended: it hung for {hangs_s:g} s"
    return "was stopped"


def _too_much(process: ArmProcess, settings: ServingSettings, *, base: int) -> str:
    grown = process.resident_bytes() - base
    if grown <= settings.challenger_memory_bytes:
        return ""
    return (
        f"was ended: it took {grown / 2**20:,.0f} MiB of memory, allowed are "
        f"{settings.challenger_memory_bytes / 2**20:,.0f}"
    )
