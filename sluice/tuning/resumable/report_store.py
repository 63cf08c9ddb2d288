"""Stores the results and checkpoint paths that the trials of a study reported, by attempt."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from sluice.tuning.resumable.events import CheckpointKey, TrialAttempt
from sluice.tuning.resumable.proxies import TrialProxy


class ReportStore:
    """Reported results with the paths of their checkpoints.

    The store also tracks which checkpoints a scheduler still references. They must not be removed.
    """

    def __init__(self) -> None:
        self._results: dict[tuple[int, int], dict[float, tuple[dict[str, Any], str]]] = {}
        """Results and checkpoint paths by time, the earliest first, for each (trial, attempt)."""
        self._referenced_keys: WeakValueDictionary[tuple[int, int, float], CheckpointKey]
        self._referenced_keys = WeakValueDictionary()
        """Checkpoints that a scheduler requested and still references, such as those of PBT's best
        trials, by (trial, attempt, time)."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_results": self._results, "_referenced_keys": list(self._referenced_keys.values())}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._results = state["_results"]
        keys = state["_referenced_keys"]
        self._referenced_keys = WeakValueDictionary({(k.trial, k.attempt, k.time): k for k in keys})

    def add(self, trial: TrialProxy, result: dict[str, Any], checkpoint: str) -> None:
        """Add the last result of a trial."""
        results_by_time = self._results.setdefault((trial.number, trial.attempt), {})
        results_by_time[trial.time] = (result, checkpoint)

    def reference_checkpoint(self, trial: TrialProxy) -> CheckpointKey:
        """Return the key of a trial's checkpoint; the checkpoint is kept while the key exists."""
        key = trial.checkpoint
        return self._referenced_keys.setdefault((key.trial, key.attempt, key.time), key)

    def latest_checkpoint(self, trial: TrialProxy) -> tuple[str, dict[str, Any]]:
        """Return path and result of the checkpoint from which a trial continues.

        Both are empty if the trial starts from initial weights.
        """
        results = self._results.get((trial.number, trial.attempt), {})
        for result, path in reversed(results.values()):
            if path:
                return path, result
        return self.checkpoint_at(trial.start)

    def last_written_checkpoint(self, trial: TrialProxy) -> str:
        """Return the path of the last checkpoint that a trial wrote in any of its attempts."""
        for attempt in range(trial.attempt, -1, -1):
            for _, path in reversed(self._results.get((trial.number, attempt), {}).values()):
                if path:
                    return path
        return ""

    def checkpoint_at(self, key: CheckpointKey | None) -> tuple[str, dict[str, Any]]:
        """Return path and result of a checkpoint; both are empty for None."""
        if key is None:
            return "", {}
        result, path = self._results.get((key.trial, key.attempt), {}).get(key.time, ({}, ""))
        return path, result

    def results_of_attempt(self, number: int, attempt: int) -> Iterator[dict[str, Any]]:
        """Yield the results of one attempt of a trial."""
        for result, _ in self._results.get((number, attempt), {}).values():
            yield result

    def results_along(
        self, attempts: tuple[TrialAttempt, ...], last: CheckpointKey
    ) -> Iterator[dict[str, Any]]:
        """Yield the results of a chain of attempts, each up to the start of the next attempt.

        Args:
            attempts: Attempts, each of which started from a checkpoint of the previous attempt.
            last: Last checkpoint of the last attempt.
        """
        end_keys = [attempt.start for attempt in attempts[1:]] + [last]
        for attempt, end_key in zip(attempts, end_keys, strict=True):
            start_time = attempt.start.time if attempt.start else float("-inf")
            assert end_key is not None
            results_by_time = self._results.get((end_key.trial, end_key.attempt), {})
            for time, (result, _) in results_by_time.items():
                if start_time < time <= end_key.time:
                    yield result

    def checkpoints_needed(self, live_trials: Iterable[TrialProxy]) -> Iterator[str]:
        """Yield the paths of all checkpoints that are still needed.

        These are the checkpoints from which ``live_trials`` continue, the checkpoints from which
        their attempts started, and the checkpoints that a scheduler references.
        """
        for trial in live_trials:
            yield self.latest_checkpoint(trial)[0]
            yield self.checkpoint_at(trial.start)[0]
        for key in list(self._referenced_keys.values()):
            yield self.checkpoint_at(key)[0]
