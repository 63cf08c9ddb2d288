"""Trials that run side by side and are stopped early: ASHA, the median rule, or none.

Decisions follow a clock of their own, not the wall's. Trials run on ``lanes``; a lane's time is
the number of epochs planned on it so far, and what ends first by that clock is decided first,
whichever worker was faster. So the decisions are the same on every machine, and the list of
outcomes is the whole state: told again in any order, they lead to the same point. An epoch that
is told early waits; to keep workers busy meanwhile, plan more lanes than workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.tuning.proposals import Past, Propose
from sluice.tuning.pruning import Rule
from sluice.tuning.records import Key, Outcome, Segment, Step, Trial


@dataclass(slots=True)
class _Lane:
    index: int
    ends_at: int
    """When its segment ends, by the lane's own clock [epochs]."""
    segment: Segment


@dataclass(slots=True)
class _State:
    trial: Trial
    at_epoch: dict[int, float] = field(default_factory=dict)
    """Kept loss at each decision epoch it reached."""


class StoppingSearch:
    """The decisions of a search in which every trial keeps its values.

    Args:
        propose: Gives the values of a new trial.
        rule: Says which trials stop.
        num_trials: Trials in all.
        lanes: Trials at a time.
        decision_epochs: When a trial may be stopped, ascending, below ``max_epochs``.
        max_epochs: Length of a trial that is not stopped.
    """

    def __init__(
        self,
        propose: Propose,
        rule: Rule,
        *,
        num_trials: int,
        lanes: int,
        decision_epochs: Sequence[int],
        max_epochs: int,
    ) -> None:
        self._propose, self._rule = propose, rule
        self._num_trials = num_trials
        self._epochs = (*decision_epochs, max_epochs)
        self._states: list[_State] = []
        self._told: dict[Key, Outcome] = {}
        self._lanes: list[_Lane] = []
        for index in range(min(lanes, num_trials)):
            self._begin(index, at=0)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials so far, by id."""
        return tuple(state.trial for state in self._states)

    def ready(self) -> tuple[Segment, ...]:
        """Return the segments that may run now, the most urgent first."""
        waiting = [lane for lane in self._lanes if lane.segment.key not in self._told]
        return tuple(lane.segment for lane in sorted(waiting, key=_turn))

    def needed(self) -> frozenset[Key]:
        """Return the ends whose checkpoints may still be read."""
        keys = {lane.segment.key for lane in self._lanes}
        return frozenset(keys | {lane.segment.start for lane in self._lanes if lane.segment.start})

    def tell(self, outcome: Outcome) -> None:
        """Take in what came of a segment, and decide all that can be decided now."""
        self._told[outcome.key] = outcome.checked()
        while self._lanes:
            lane = min(self._lanes, key=_turn)
            told = self._told.get(lane.segment.key)
            if told is None:
                return
            self._decide(lane, told)

    def _decide(self, lane: _Lane, outcome: Outcome) -> None:
        state, segment = self._states[lane.segment.trial], lane.segment
        state.trial = state.trial.model_copy(
            update={
                "epochs": outcome.epochs,
                "seconds": state.trial.seconds + outcome.seconds,
            }
        )
        if outcome.status == "failed":
            return self._end(lane, "failed", outcome.reason)
        if outcome.status == "finished" or segment.until == self._epochs[-1]:
            # One that ended by itself keeps its loss for the rungs it will not reach.
            for epoch in self._epochs[:-1]:
                state.at_epoch.setdefault(epoch, outcome.loss)
            return self._end(lane, "finished", outcome.reason)
        epoch = segment.until
        others = [s.at_epoch[epoch] for s in self._states if epoch in s.at_epoch]
        state.at_epoch[epoch] = outcome.loss
        reason = self._rule(outcome.loss, others)
        if reason:
            return self._end(lane, "pruned", f"Epoch {epoch}: {reason}")
        until = next(e for e in self._epochs if e > epoch)
        lane.segment = Segment(
            trial=segment.trial, start=segment.key, until=until, schedule=segment.schedule
        )
        lane.ends_at += until - epoch
        return None

    def _end(self, lane: _Lane, how: str, reason: str) -> None:
        state = self._states[lane.segment.trial]
        state.trial = state.trial.model_copy(update={"state": how, "reason": reason})
        self._lanes.remove(lane)
        if len(self._states) < self._num_trials:
            self._begin(lane.index, at=lane.ends_at)

    def _begin(self, index: int, *, at: int) -> None:
        number = len(self._states)
        params = self._propose(number, [_past(state.trial) for state in self._states])
        schedule = (Step(from_epoch=0, params=params),)
        self._states.append(_State(Trial(id=number, schedule=schedule)))
        until = self._epochs[0]
        segment = Segment(trial=number, start=None, until=until, schedule=schedule)
        self._lanes.append(_Lane(index=index, ends_at=at + until, segment=segment))


def _turn(lane: _Lane) -> tuple[int, int]:
    return lane.ends_at, lane.index


def _past(trial: Trial) -> Past:
    return Past(
        params=trial.params,
        loss=None if trial.state == "running" else trial.loss,
        epochs=len(trial.epochs),
        pruned=trial.state == "pruned",
    )
