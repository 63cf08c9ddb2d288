"""Decisions of Ray Tune's schedulers and searchers that survive a kill of the driver."""

from sluice.tuning.resumable.wrappers import resumable

__all__ = ["resumable"]
