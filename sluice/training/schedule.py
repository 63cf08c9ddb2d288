"""The learning rate as a function of the step: linear warmup, then half a cosine."""

import math

from sluice.training.settings import TrainSettings


def learning_rate_at(step: int, total_steps: int, settings: TrainSettings) -> float:
    """Return the learning rate of one optimizer step.

    The rate increases linearly over the first W = round(warmup_share * total_steps) steps and
    equals the peak at step W. It then decreases along half a cosine, to exactly
    ``final_rate_share`` of the peak at the last step. The rate of the first step is above 0,
    because a step with rate 0 would have no effect.

    Args:
        step: Index of the step, from 0.
        total_steps: Number of steps of the whole training; the cosine ends at the last step.
        settings: Peak rate, and the shares of the warmup and of the final rate.

    Source:
        Loshchilov & Hutter (2017), "SGDR", ICLR, without restarts.
    """
    peak, last_step = settings.learning_rate, total_steps - 1
    warmup_steps = min(round(settings.warmup_share * total_steps), last_step)
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if last_step == warmup_steps:
        return peak
    cosine = math.cos(math.pi * (step - warmup_steps) / (last_step - warmup_steps))
    peak_share = 0.5 * (1 + cosine)
    return peak * (peak_share + (1 - peak_share) * settings.final_rate_share)
