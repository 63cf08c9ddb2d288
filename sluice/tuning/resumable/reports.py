"""Results and checkpoints of a study's trials, by attempt."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from sluice.tuning.resumable.events import Attempt, CheckpointKey
from sluice.tuning.resumable.shadow import ShadowTrial


class Reports:
    """What trials reported, and which checkpoint came with it."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, int], dict[float, tuple[dict[str, Any], str]]] = {}
        """Result and path of the checkpoint by time, of each attempt of each trial; in order."""
        self._saved: WeakValueDictionary[tuple[int, int, float], CheckpointKey]
        self._saved = WeakValueDictionary()
        """Checkpoints that a scheduler asked for and still remembers, as PBT's of its best."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_results": self._results, "_saved": list(self._saved.values())}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._results = state["_results"]
        keys = state["_saved"]
        self._saved = WeakValueDictionary({(k.trial, k.attempt, k.time): k for k in keys})

    def add(self, trial: ShadowTrial, result: dict[str, Any], checkpoint: str) -> None:
        """Add the last result of a trial."""
        attempt = self._results.setdefault((trial.number, trial.attempt), {})
        attempt[trial.time] = (result, checkpoint)

    def save(self, trial: ShadowTrial) -> CheckpointKey:
        """Return the key of a trial's checkpoint; it is needed while somebody holds the key."""
        key = trial.checkpoint
        return self._saved.setdefault((key.trial, key.attempt, key.time), key)

    def latest(self, trial: ShadowTrial) -> tuple[str, dict[str, Any]]:
        """Return the path that a trial continues from, and the result that came with it."""
        found = self._results.get((trial.number, trial.attempt))
        if found:
            for result, path in reversed(found.values()):
                if path:
                    return path, result
        return self.at(trial.start)

    def written(self, trial: ShadowTrial) -> str:
        """Return the path of the last checkpoint that a trial wrote in any of its attempts."""
        for attempt in range(trial.attempt, -1, -1):
            for _, path in reversed(self._results.get((trial.number, attempt), {}).values()):
                if path:
                    return path
        return ""

    def at(self, key: CheckpointKey | None) -> tuple[str, dict[str, Any]]:
        """Return the path of a checkpoint and its result; empty where there is none."""
        if key is None:
            return "", {}
        result, path = self._results.get((key.trial, key.attempt), {}).get(key.time, ({}, ""))
        return path, result

    def of(self, number: int, attempt: int) -> Iterator[dict[str, Any]]:
        """Yield the results of one attempt of a trial."""
        for result, _ in self._results.get((number, attempt), {}).values():
            yield result

    def along(self, lineage: tuple[Attempt, ...], last: CheckpointKey) -> Iterator[dict[str, Any]]:
        """Yield the results of a chain of attempts, of each up to where the next one starts."""
        ends = [attempt.start for attempt in lineage[1:]] + [last]
        for attempt, end in zip(lineage, ends, strict=True):
            begun = attempt.start.time if attempt.start else float("-inf")
            assert end is not None
            for time, (result, _) in self._results.get((end.trial, end.attempt), {}).items():
                if begun < time <= end.time:
                    yield result

    def needed(self, live: Iterable[ShadowTrial]) -> Iterator[str]:
        """Yield the paths that the given trials continue from or that a scheduler remembers."""
        for trial in live:
            yield self.latest(trial)[0]
            yield self.at(trial.start)[0]
        for key in list(self._saved.values()):
            yield self.at(key)[0]
