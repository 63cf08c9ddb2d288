"""Chooses the sampling interval of statistics from their measured cost."""

import math
import statistics
from collections import deque

_NUM_RECENT_COSTS = 9
"""Number of latest samples whose median cost is used. With a mean, the warm-up in the first costs
would make the interval too long."""

_NUM_RECENT_STEP_TIMES = 33
"""Number of latest steps whose median time is used. With a median, a single pause of the program
does not shorten the sampling interval."""


class SamplingBudget:
    """Chooses the steps with statistics, so that statistics take only a share of the run time.

    The sampling interval is short at first and grows, so that a short run has samples, too. Later,
    norms of gradients and weights are sampled at least every ``max_interval`` steps, even if their
    cost exceeds the share. All other statistics are sampled only as often as the share allows.

    Args:
        cost_share: Maximum time spent on statistics, as a share of the program's own time.
        max_interval: Maximum interval between samples of the norms [steps].
    """

    def __init__(self, *, cost_share: float, max_interval: int) -> None:
        self._cost_share = cost_share
        self._max_interval = max_interval
        self._costs: deque[int] = deque(maxlen=_NUM_RECENT_COSTS)
        """Costs of the latest full samples [ns]."""
        self._step_times: deque[int] = deque(maxlen=_NUM_RECENT_STEP_TIMES)
        """Times of the latest steps, without their statistics [ns]."""
        self._flush_cost_ns = 0.0
        """Cost of reading and writing the statistics of one step at a flush [ns]."""
        self._num_steps = 0
        """Number of steps so far."""
        self._num_untimed_steps = 0
        """Number of steps that ``add_repeats`` added since the last ``add_step``."""
        self._due_step = 0
        """Number of steps after which the next statistics are due."""
        self._restart_step = 0
        """Number of steps before the last restart."""
        self._norm_samples_left = 0
        """Number of samples, each of only the norms, that are taken before the next full sample."""
        self._interval = 1
        """Interval between samples [steps]."""

    @property
    def is_next_sample_full(self) -> bool:
        """Whether the next sample includes all statistics, not only the norms."""
        return not self._norm_samples_left

    @property
    def steps_until_due(self) -> int:
        """Number of steps until the next step with statistics; 0 if the next step has them."""
        return self._due_step - self._num_steps

    def add_flush(self, *, cost_ns: int, num_sampled_steps: int) -> None:
        """Add the time of a flush, which read and wrote the statistics of the sampled steps."""
        self._flush_cost_ns = cost_ns / max(num_sampled_steps, 1)

    @property
    def step_ns(self) -> float:
        """Median time of the latest steps without their statistics [ns]; 0 before the first."""
        return statistics.median(self._step_times) if self._step_times else 0.0

    def add_repeats(self, num_steps: int) -> None:
        """Add steps without statistics; their time is included in the next ``add_step``."""
        self._num_steps += num_steps
        self._num_untimed_steps += num_steps

    def add_step(self, *, step_ns: int, cost_ns: int) -> bool:
        """Add a step.

        The interval to the next sample is chosen only at a step that was due for statistics.
        Another step may have a cost, too, for example for a snapshot of the membership.

        Args:
            step_ns: Time of the step, its statistics, and the steps that ``add_repeats`` added
                since the last call [ns].
            cost_ns: Time that the tracer spent on statistics and other samples of the step [ns].

        Returns:
            Whether the next step has statistics.
        """
        self._step_times.append((step_ns - cost_ns) // (self._num_untimed_steps + 1))
        self._num_untimed_steps = 0
        if cost_ns and self._num_steps >= self._due_step:
            self._schedule_next(cost_ns)
        self._num_steps += 1
        return self._num_steps >= self._due_step

    def restart(self) -> None:
        """Sample the next step, and shorten the interval to the initial interval."""
        self._restart_step = self._due_step = self._num_steps
        self._norm_samples_left = 0

    def _schedule_next(self, cost_ns: int) -> None:
        steps_since_restart = self._num_steps - self._restart_step
        if self._norm_samples_left:
            self._norm_samples_left -= 1
        else:
            self._costs.append(cost_ns)
            median_cost_ns = statistics.median(self._costs) + self._flush_cost_ns
            allowed_cost_per_step_ns = self._cost_share * max(self.step_ns, 1)
            ideal_interval = max(math.ceil(median_cost_ns / allowed_cost_per_step_ns), 1)
            self._interval = min(ideal_interval, self._max_interval)
            # If the ideal interval is longer than the maximum interval, samples are taken at the
            # maximum interval. The samples between two full samples contain only the norms, so that
            # full samples are about one ideal interval apart.
            if steps_since_restart >= self._max_interval:
                self._norm_samples_left = -(-ideal_interval // self._max_interval) - 1
        next_interval = min(self._interval, max(steps_since_restart, 1))
        # The interval is made odd, so that both of two alternating optimizers are sampled.
        self._due_step = self._num_steps + next_interval - (next_interval % 2 == 0)
