"""The two orders in which a study applies events: a virtual clock's, and that of arrival."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ray.tune.experiment import Trial

from sluice.base.errors import ContractError
from sluice.tuning.resumable.clock import VirtualClock
from sluice.tuning.resumable.events import Event
from sluice.tuning.resumable.shadow import ShadowTrial
from sluice.tuning.resumable.study import Study, plain


class OrderedStudy(Study):
    """Applies events in the order of a virtual clock, whichever worker was faster.

    Every report takes one unit of time on its slot, and what is due first is applied first. A
    trial is suggested when a slot is free.

    Args:
        num_slots: Trials that run at a time by the virtual clock. Part of the decisions.
        arguments: Those of ``Study``.
    """

    def __init__(self, *arguments: Any, num_slots: int, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._clock = VirtualClock(num_slots)
        self._arrived: dict[int, deque[Event]] = {}
        self._offered: deque[Mapping[str, Any]] = deque()
        self._expected: deque[Mapping[str, Any]] = deque()
        """Suggestions in the journal that are not made again yet."""
        self._num_recorded = 0
        """Offers in the journal."""
        self._has_begun = False

    def replay(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Apply the lines of a journal."""
        lines = list(lines)
        suggested = [line for line in lines if "config" in line]
        if self._searcher is None:
            self._offered.extend(line["config"] for line in suggested)
            self._num_recorded += len(suggested)
        else:
            self._expected = deque(suggested)
        events = [line for line in lines if "config" not in line]
        if self._searcher is not None or events:
            self._begin(is_new=not events)
        for number, line in enumerate(events, 1):
            event = self._lines.decode(line)
            self._require_running(event)
            if self._clock.first() != event.trial:
                raise ContractError(
                    f"The journal has report {number} of trial {event.trial}, due is trial "
                    f"{self._clock.first()}.",
                    fix="Go on with the releases that began the study, or begin it elsewhere.",
                )
            self._apply_and_fill(event, is_new=number == len(events))
        if self._expected:
            raise ContractError(
                f"The journal has a suggestion for trial {self._expected[0]['trial']}, which the "
                "searcher does not make again.",
                fix="Give the searcher and its sampler a fixed seed.",
            )

    def offer(self, config: Mapping[str, Any]) -> int:
        """Queue a configuration that was chosen outside."""
        self._offered.append(dict(config))
        return len(self.trials) + len(self._offered) - 1

    def num_known(self) -> int:
        """Return the number of trials that are there or queued."""
        return len(self.trials) + len(self._offered)

    def start(self) -> None:
        """Let the first trials run; no more is offered."""
        first = len(self.trials)
        for index in range(max(self._num_recorded - first, 0), len(self._offered)):
            line = {"trial": first + index, "config": plain(self._offered[index])}
            self._record(line, False)
            self._num_recorded += 1
        self._begin(is_new=True)

    def _begin(self, *, is_new: bool) -> None:
        if not self._has_begun:
            self._has_begun = True
            with self._draws.step():
                self._fill(is_new=is_new)

    def suggest(self) -> bool:
        """Return False: trials are there as soon as a slot is free."""
        return False

    def choice(self) -> int | None:
        """Return None: what does not run has no slot."""
        return None

    def receive(self, event: Event) -> list[Event]:
        """Take in an event and apply all that are due now."""
        self._arrived.setdefault(event.trial, deque()).append(event)
        self._changed[event.trial] = None
        return list(self._advance())

    def position(self, trial: int) -> tuple[int, int]:
        """Return time and slot of a running trial."""
        return self._clock.position(trial)

    def is_waiting(self, trial: int) -> bool:
        """Return whether an event of the trial has arrived and is not due yet."""
        return trial in self._arrived

    def checkpoints_needed(self) -> frozenset[str]:
        """Return the paths of checkpoints that a trial may still start from."""
        arrived = {event.checkpoint for queue in self._arrived.values() for event in queue}
        return super().checkpoints_needed() | (arrived - {""})

    def _advance(self) -> Iterator[Event]:
        while (due := self._clock.first()) is not None and due in self._arrived:
            queue = self._arrived[due]
            event = queue.popleft()
            if not queue:
                del self._arrived[due]
            self._record(self._lines.encode(event), True)
            self._apply_and_fill(event, is_new=True)
            yield event

    def _apply_and_fill(self, event: Event, *, is_new: bool) -> None:
        self._clock.tick(event.trial)
        with self._draws.step():
            self._apply(event)
            self._fill(is_new=is_new)

    def _fill(self, *, is_new: bool) -> None:
        """Give each free slot the trial that the scheduler chooses."""
        while self._clock.has_free_slot():
            if not self._num[Trial.PENDING]:
                self._suggest(is_new=is_new)
            chosen = self._choose()
            if chosen is None:
                return
            self._clock.start(chosen.number)
            self._run(chosen)

    def _suggest(self, *, is_new: bool) -> None:
        if self._exhausted or len(self.trials) >= self._num_samples:
            return
        if self._searcher is None:
            if self._offered:
                self._add(self._offered.popleft())
            return
        config = self._ask()
        if config is None:
            return
        if self._expected:
            self._require_same(self._expected.popleft(), config)
        elif is_new:
            self._record({"trial": len(self.trials), "config": plain(config)}, False)
        else:
            raise ContractError(
                f"The searcher suggests trial {len(self.trials)} earlier than the journal says.",
                fix="Give the searcher and its sampler a fixed seed.",
            )
        self._add(config)

    def _observe(self, trial: ShadowTrial, before: str) -> None:
        super()._observe(trial, before)
        if before == Trial.RUNNING != trial.status:
            self._clock.stop(trial.number)


class ArrivalStudy(Study):
    """Applies events as they arrive, and suggests a trial when Tune asks for one.

    Args:
        num_slots: Trials that run at a time at most; None for no limit.
        max_pending: Trials at a time that are suggested and have no worker.
        arguments: Those of ``Study``.
    """

    def __init__(
        self, *arguments: Any, num_slots: int | None, max_pending: int = 1, **settings: Any
    ) -> None:
        super().__init__(*arguments, **settings)
        self._limit, self._max_pending = num_slots, max_pending
        self._chosen: ShadowTrial | None = None
        self._has_chosen = False
        """Whether the scheduler was asked for a trial since the last line of the journal."""

    def replay(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Apply the lines of a journal, in their order."""
        for line in lines:
            if "config" in line:
                self._repeat(line)
            else:
                self._receive(self._lines.decode(line))

    def _repeat(self, line: Mapping[str, Any]) -> None:
        if line.get("chosen"):
            self.choice()
        config = line["config"]
        if self._searcher is not None:
            suggested = self._ask()
            self._require_same(line, suggested or {})
            config = suggested
        self._append(config)

    def offer(self, config: Mapping[str, Any]) -> int:
        """Add a trial whose configuration was chosen outside."""
        self._record_suggestion(config)
        self._append(config)
        return len(self.trials) - 1

    def start(self) -> None:
        """Do nothing: trials start when they get a worker."""

    def suggest(self) -> bool:
        """Ask the searcher for a trial, unless enough wait for a worker."""
        pending = self._num[Trial.PENDING]
        full = self._limit is not None and pending + self._num[Trial.RUNNING] >= self._limit
        if self.is_exhausted() or full or pending >= self._max_pending:
            return False
        config = self._ask()
        if config is None:
            return False
        self._record_suggestion(config)
        self._append(config)
        return True

    def choice(self) -> int | None:
        """Return the trial that the scheduler wants to start next."""
        if not self._has_chosen:
            full = self._limit is not None and self._num[Trial.RUNNING] >= self._limit
            self._chosen, self._has_chosen = None if full else self._choose(), True
        return None if self._chosen is None else self._chosen.number

    def receive(self, event: Event) -> list[Event]:
        """Write an event down and apply it."""
        self.choice()
        self._record(self._lines.encode(event), event.kind != "start")
        self._receive(event)
        return [event]

    def position(self, trial: int) -> tuple[int, int]:
        """Return the trial's number: the oldest comes first."""
        return trial, 0

    def is_waiting(self, trial: int) -> bool:
        """Return False: what arrives is applied."""
        del trial
        return False

    def _receive(self, event: Event) -> None:
        # As Tune does it: the scheduler chooses what to start, then one event is handled.
        self.choice()
        self._has_chosen = False
        with self._draws.step():
            if event.kind == "start":
                self._run(self.trials[event.trial])
            else:
                self._apply(event)

    def _record_suggestion(self, config: Mapping[str, Any]) -> None:
        line = {"trial": len(self.trials), "config": plain(config)}
        self._record({**line, "chosen": 1} if self._has_chosen else line, False)

    def _append(self, config: Mapping[str, Any]) -> None:
        self._has_chosen = False
        with self._draws.step():
            self._add(config)
