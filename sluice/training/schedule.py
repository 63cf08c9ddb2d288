"""The learning rate as a function of the step: linear warmup, then half a cosine."""

import math

from sluice.training.settings import TrainSettings


def learning_rate_at(step: int, total_steps: int, settings: TrainSettings) -> float:
    """Return the learning rate of one optimizer step.

    The rate increases linearly over the first W = round(warmup_share * total_steps) steps, equals
    the peak at step W, and then decreases along half a cosine to exactly ``final_rate_share`` of
    the peak at the last step. The rate of the first step is above 0, because a step with rate 0
    would have no effect.

    Args:
        step: Index of the step, from 0.
        total_steps: Number of steps of the whole training; the cosine ends at the last step.
        settings: Peak rate, and the shares of the warmup and of the final rate.

    Source:
        Loshchilov & Hutter (2017), "SGDR", ICLR, without restarts.
    """
    peak, last = settings.learning_rate, total_steps - 1
    warmup = min(round(settings.warmup_share * total_steps), last)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if last == warmup:
        return peak
    weight = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (last - warmup)))
    return peak * (weight + (1 - weight) * settings.final_rate_share)
