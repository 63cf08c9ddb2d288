"""Population based training: weak members go on from strong ones' weights, with changed values.

All members take a step together, so that it depends on no worker's speed; what is drawn comes from
the seed, the step and the member. The list of outcomes is the whole state.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sluice.training.seeds import derive_seed
from sluice.tuning.parameters import Choice, LogUniform, Params, Uniform, Value
from sluice.tuning.proposals import Propose
from sluice.tuning.records import Exploit, Key, Outcome, Segment, Step, Trial
from sluice.tuning.spaces import Space
from sluice.tuning.strategy import PERTURBED

_FACTORS = (0.8, 1.2)
_AFRESH = 0.25
"""Share of changed values that are drawn anew."""


class PopulationSearch:
    """The decisions of a search whose trials change their values on the way.

    After each step the worst quarter copy weights and values of a random member of the best
    quarter and change the values that may change: times 0.8 or 1.2, or anew. A member whose
    training failed is the worst of all. Members are compared by the validation loss of their
    last epoch, since it is their present weights that are copied.

    Args:
        space: What is searched.
        propose: Gives the values a member begins with.
        num_trials: Members.
        decision_epochs: The steps, ascending, below ``max_epochs``.
        max_epochs: Length of training.
        seed: Base seed of the changes.

    Source:
        Jaderberg et al. (2017), "Population Based Training of Neural Networks".
    """

    def __init__(
        self,
        space: Space,
        propose: Propose,
        *,
        num_trials: int,
        decision_epochs: Sequence[int],
        max_epochs: int,
        seed: int,
    ) -> None:
        self._space, self._seed = space, seed
        self._epochs = (*decision_epochs, max_epochs)
        self._step = 0
        self._told: dict[Key, Outcome] = {}
        self._trials: list[Trial] = []
        self._segments: list[Segment] = []
        self.exploits: list[Exploit] = []
        for number in range(num_trials):
            schedule = (Step(from_epoch=0, params=propose(number, ())),)
            self._trials.append(Trial(id=number, schedule=schedule))
            self._segments.append(
                Segment(trial=number, start=None, until=self._epochs[0], schedule=schedule)
            )

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All members, by id; a member's losses and schedule are those of its weights' past."""
        return tuple(self._trials)

    def ready(self) -> tuple[Segment, ...]:
        """Return the segments that may run now."""
        return tuple(s for s in self._segments if s.key not in self._told)

    def needed(self) -> frozenset[Key]:
        """Return the ends whose checkpoints may still be read."""
        keys = {segment.key for segment in self._segments}
        return frozenset(keys | {s.start for s in self._segments if s.start is not None})

    def tell(self, outcome: Outcome) -> None:
        """Take in what came of a segment; when it was the last of a step, take the step."""
        self._told[outcome.key] = outcome.checked()
        while self._segments and not self.ready():
            self._take_step()

    def _take_step(self) -> None:
        outcomes = [self._told[segment.key] for segment in self._segments]
        epoch = self._epochs[self._step]
        self._step += 1
        for outcome in outcomes:
            seconds = self._trials[outcome.trial].seconds + outcome.seconds
            self._update(outcome.trial, epochs=outcome.epochs, seconds=seconds)
        failed = [o.trial for o in outcomes if o.status == "failed"]
        alive = [o for o in outcomes if o.status != "failed"]
        if not alive or self._step == len(self._epochs):
            for outcome in outcomes:
                how = "failed" if outcome.status == "failed" else "finished"
                self._update(outcome.trial, state=how, reason=outcome.reason)
            self._segments = []
            return
        ranked = [o.trial for o in sorted(alive, key=lambda o: (o.epochs[-1].val_loss, o.trial))]
        quarter = max(1, len(outcomes) // 4)
        best, rest = ranked[:quarter], ranked[quarter:]
        num_weak = max(0, quarter - len(failed))
        weak = {*failed, *rest[len(rest) - min(num_weak, len(rest)) :]}
        self._segments = [self._next(o.trial, epoch, best, weak) for o in outcomes]

    def _next(self, trial: int, epoch: int, best: Sequence[int], weak: set[int]) -> Segment:
        donor, schedule = trial, self._trials[trial].schedule
        if trial in weak:
            rng = np.random.default_rng(derive_seed(self._seed, f"pbt_{epoch}_{trial}"))
            donor = best[int(rng.integers(len(best)))]
            params = self._changed(self._trials[donor].params, rng)
            self.exploits.append(Exploit(epoch=epoch, trial=trial, donor=donor, params=params))
            # No donor is weak, so its own schedule and losses are not replaced in this step.
            schedule = (*self._trials[donor].schedule, Step(from_epoch=epoch, params=params))
            self._update(trial, schedule=schedule, epochs=self._trials[donor].epochs)
        return Segment(
            trial=trial, start=(donor, epoch), until=self._epochs[self._step], schedule=schedule
        )

    def _changed(self, params: Params, rng: np.random.Generator) -> Params:
        changed = dict(params)
        for path, value in params.items():
            parameter = self._space.parameters[path]
            afresh, up = rng.random() < _AFRESH, int(rng.random() < 0.5)
            drawn = parameter.draw(rng)
            if path in PERTURBED and not isinstance(parameter, Choice):
                changed[path] = drawn if afresh else _moved(parameter, value, _FACTORS[up])
        return changed

    def _update(self, trial: int, **changes: Any) -> None:
        self._trials[trial] = self._trials[trial].model_copy(update=changes)


def _moved(parameter: Any, value: Value, factor: float) -> Value:
    if not isinstance(parameter, LogUniform | Uniform) or not value:
        return value  # what is off stays off, until it is drawn anew
    return parameter.nearest(float(value) * factor)  # type: ignore[arg-type]
