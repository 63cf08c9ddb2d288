"""The two orders in which a study applies events: by a virtual clock, or as they arrive."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ray.tune.experiment import Trial

from sluice.base.errors import ContractError
from sluice.tuning.resumable.clock import VirtualClock
from sluice.tuning.resumable.events import StudyEvent
from sluice.tuning.resumable.proxies import TrialProxy
from sluice.tuning.resumable.study import Study, json_round_trip


class OrderedStudy(Study):
    """Applies events in the order of a virtual clock, independent of the speed of workers.

    Every report takes one unit of virtual time on its trial's slot. The report with the earliest
    virtual time is applied first; a report that arrives too early waits. The searcher suggests a
    trial as soon as a slot is free.

    Args:
        num_slots: Number of trials that run at the same virtual time. Affects the decisions.
        arguments: Positional arguments of ``Study``.
        settings: Keyword arguments of ``Study``.
    """

    def __init__(self, *arguments: Any, num_slots: int, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._clock = VirtualClock(num_slots)
        self._pending_events: dict[int, deque[StudyEvent]] = {}
        """Received events that are not applied yet, by trial."""
        self._queued_configs: deque[Mapping[str, Any]] = deque()
        """Configurations of trials that are not created yet."""
        self._expected_suggestions: deque[Mapping[str, Any]] = deque()
        """Suggestions in the journal that the searcher has not repeated yet."""
        self._num_recorded = 0
        """Number of queued configurations that are in the journal."""
        self._has_started = False

    def replay(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Apply the lines of a journal."""
        lines = list(lines)
        suggestions = [line for line in lines if "config" in line]
        if self._searcher is None:
            self._queued_configs.extend(line["config"] for line in suggestions)
            self._num_recorded += len(suggestions)
        else:
            self._expected_suggestions = deque(suggestions)
        events = [line for line in lines if "config" not in line]
        # With neither a searcher nor events, ``start`` starts the first trials later, when all
        # trials are queued.
        if self._searcher is not None or events:
            self._start_first_trials(is_new=not events)
        for event_number, line in enumerate(events, 1):
            event = self._lines.decode(line)
            self._require_running(event)
            if self._clock.next_due_trial() != event.trial:
                raise ContractError(
                    f"Report {event_number} of the journal is from trial {event.trial}, but trial "
                    f"{self._clock.next_due_trial()} is due.",
                    fix="Resume with the releases of Sluice and Ray that started the study, or "
                    "start it in another folder.",
                )
            # After the last event, new suggestions are allowed: the process may have been killed
            # before it recorded them.
            self._apply_and_fill_slots(event, is_new=event_number == len(events))
        if self._expected_suggestions:
            raise ContractError(
                "The journal contains a suggestion for trial "
                f"{self._expected_suggestions[0]['trial']} that the searcher does not repeat.",
                fix="Give the searcher and its sampler a fixed seed.",
            )

    def enqueue(self, config: Mapping[str, Any]) -> int:
        """Queue a configuration that was chosen outside the study."""
        self._queued_configs.append(dict(config))
        return len(self.trials) + len(self._queued_configs) - 1

    def num_known_trials(self) -> int:
        """Return the number of existing and queued trials."""
        return len(self.trials) + len(self._queued_configs)

    def start(self) -> None:
        """Record the queued trials, and start the first trials. Afterwards, none may be queued."""
        num_trials = len(self.trials)
        for index in range(max(self._num_recorded - num_trials, 0), len(self._queued_configs)):
            line = {
                "trial": num_trials + index,
                "config": json_round_trip(self._queued_configs[index]),
            }
            self._write_line(line, False)
            self._num_recorded += 1
        self._start_first_trials(is_new=True)

    def _start_first_trials(self, *, is_new: bool) -> None:
        """Start the first trials; do nothing in further calls.

        In this class, ``is_new`` is False for decisions that the journal contains already.
        """
        if not self._has_started:
            self._has_started = True
            with self._seeded_random.step():
                self._fill_slots(is_new=is_new)

    def suggest(self) -> bool:
        """Return False, because this study creates a trial by itself as soon as a slot is free."""
        return False

    def next_to_start(self) -> int | None:
        """Return None, because this study starts a trial by itself as soon as a slot is free."""
        return None

    def receive(self, event: StudyEvent) -> list[StudyEvent]:
        """Store an event, and apply all stored events that are due."""
        self._pending_events.setdefault(event.trial, deque()).append(event)
        self._changed_numbers[event.trial] = None
        return list(self._advance())

    def sort_key(self, number: int) -> tuple[int, int]:
        """Return virtual time and slot of a running trial."""
        return self._clock.sort_key(number)

    def has_pending_event(self, number: int) -> bool:
        """Return whether an event of the trial was received and is not applied yet."""
        return number in self._pending_events

    def checkpoints_needed(self) -> frozenset[str]:
        """Return the paths of checkpoints from which a trial may still start."""
        pending_checkpoints = {
            event.checkpoint for queue in self._pending_events.values() for event in queue
        }
        return super().checkpoints_needed() | (pending_checkpoints - {""})

    def _advance(self) -> Iterator[StudyEvent]:
        """Apply events while the event that is due next was received; yield each applied event."""
        while (
            number := self._clock.next_due_trial()
        ) is not None and number in self._pending_events:
            queue = self._pending_events[number]
            event = queue.popleft()
            if not queue:
                del self._pending_events[number]
            self._write_line(self._lines.encode(event), True)
            self._apply_and_fill_slots(event, is_new=True)
            yield event

    def _apply_and_fill_slots(self, event: StudyEvent, *, is_new: bool) -> None:
        self._clock.tick(event.trial)
        with self._seeded_random.step():
            self._apply(event)
            self._fill_slots(is_new=is_new)

    def _fill_slots(self, *, is_new: bool) -> None:
        """Start a trial on each free slot, as selected by the scheduler."""
        while self._clock.has_free_slot():
            if not self._num_by_status[Trial.PENDING]:
                self._add_next_trial(is_new=is_new)
            trial = self._choose()
            if trial is None:
                return
            self._clock.start(trial.number)
            self._run(trial)

    def _add_next_trial(self, *, is_new: bool) -> None:
        """Add the next trial: from the queue, or suggested by the searcher."""
        if self._is_exhausted or len(self.trials) >= self._num_samples:
            return
        if self._searcher is None:
            if self._queued_configs:
                self._add(self._queued_configs.popleft())
            return
        config = self._request_config()
        if config is None:
            return
        if self._expected_suggestions:
            self._require_same_suggestion(self._expected_suggestions.popleft(), config)
        elif is_new:
            self._write_line({"trial": len(self.trials), "config": json_round_trip(config)}, False)
        else:
            raise ContractError(
                f"The searcher suggests trial {len(self.trials)} earlier than in the journal.",
                fix="Give the searcher and its sampler a fixed seed.",
            )
        self._add(config)

    def _observe(self, trial: TrialProxy, previous_status: str) -> None:
        super()._observe(trial, previous_status)
        if previous_status == Trial.RUNNING and trial.status != Trial.RUNNING:
            self._clock.stop(trial.number)


class ArrivalStudy(Study):
    """Applies events in the order of arrival, and suggests a trial when Tune requests one.

    Args:
        num_slots: Maximum number of trials that run at a time; None for no limit.
        max_pending: Maximum number of suggested trials without a worker.
        arguments: Positional arguments of ``Study``.
        settings: Keyword arguments of ``Study``.
    """

    def __init__(
        self, *arguments: Any, num_slots: int | None, max_pending: int = 1, **settings: Any
    ) -> None:
        super().__init__(*arguments, **settings)
        self._num_slots, self._max_pending = num_slots, max_pending
        self._next_trial: TrialProxy | None = None
        self._has_chosen = False
        """Whether the scheduler selected a trial since the last line of the journal."""

    def replay(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Apply the lines of a journal in their order."""
        for line in lines:
            if "config" in line:
                self._repeat_suggestion(line)
            else:
                self._apply_event(self._lines.decode(line))

    def _repeat_suggestion(self, line: Mapping[str, Any]) -> None:
        """Repeat the suggestion of a line of the journal."""
        # If the scheduler selected a trial before this suggestion, repeat the call, because it may
        # have changed the state of the scheduler.
        if line.get("chosen"):
            self.next_to_start()
        config = line["config"]
        if self._searcher is not None:
            suggested_config = self._request_config()
            self._require_same_suggestion(line, suggested_config or {})
            config = suggested_config
        self._append(config)

    def enqueue(self, config: Mapping[str, Any]) -> int:
        """Add a trial whose configuration was chosen outside the study."""
        self._record_suggestion(config)
        self._append(config)
        return len(self.trials) - 1

    def start(self) -> None:
        """Do nothing, because trials of this study start when they get a worker."""

    def suggest(self) -> bool:
        """Request a trial from the searcher, unless enough trials wait for a worker."""
        num_pending = self._num_by_status[Trial.PENDING]
        is_full = (
            self._num_slots is not None
            and num_pending + self._num_by_status[Trial.RUNNING] >= self._num_slots
        )
        if self.is_exhausted() or is_full or num_pending >= self._max_pending:
            return False
        config = self._request_config()
        if config is None:
            return False
        self._record_suggestion(config)
        self._append(config)
        return True

    def next_to_start(self) -> int | None:
        """Return the number of the trial that the scheduler starts next; None if it starts none."""
        if not self._has_chosen:
            is_full = (
                self._num_slots is not None
                and self._num_by_status[Trial.RUNNING] >= self._num_slots
            )
            self._next_trial, self._has_chosen = None if is_full else self._choose(), True
        return None if self._next_trial is None else self._next_trial.number

    def receive(self, event: StudyEvent) -> list[StudyEvent]:
        """Record an event and apply it."""
        self.next_to_start()
        self._write_line(self._lines.encode(event), event.kind != "start")
        self._apply_event(event)
        return [event]

    def sort_key(self, number: int) -> tuple[int, int]:
        """Return a key that orders running trials by their number, the oldest first."""
        return number, 0

    def has_pending_event(self, number: int) -> bool:
        """Return False, because this study applies every event on arrival."""
        del number
        return False

    def _apply_event(self, event: StudyEvent) -> None:
        # As in Tune, the scheduler selects the next trial before each event.
        self.next_to_start()
        self._has_chosen = False
        with self._seeded_random.step():
            if event.kind == "start":
                self._run(self.trials[event.trial])
            else:
                self._apply(event)

    def _record_suggestion(self, config: Mapping[str, Any]) -> None:
        """Write a suggestion to the journal.

        The line contains 'chosen' if the scheduler has selected a trial since the last line.
        """
        line = {"trial": len(self.trials), "config": json_round_trip(config)}
        self._write_line({**line, "chosen": 1} if self._has_chosen else line, False)

    def _append(self, config: Mapping[str, Any]) -> None:
        """Add a trial. Afterwards, the scheduler may select another trial."""
        self._has_chosen = False
        with self._seeded_random.step():
            self._add(config)
