"""The learning rate as a function of the step: warmup, then half a cosine (TRACE-11)."""

import math

from sluice.training.settings import TrainSettings


def rate_at(step: int, total_steps: int, settings: TrainSettings) -> float:
    """Return the learning rate of one optimizer step.

    It rises in equal parts over the first W = round(warmup_share * total_steps) steps, is exactly
    the peak at step W, and falls along half a cosine to exactly ``final_rate_share`` of the peak
    at the last step. The first step is never zero: a step of rate zero would be wasted.

    Args:
        step: Steps taken before, from 0.
        total_steps: Steps of the whole training; the cosine ends at the last of them.
        settings: Peak and shares.

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
