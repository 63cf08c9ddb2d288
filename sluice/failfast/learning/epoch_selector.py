"""Check that the epoch selector returns the best epoch for synthetic training histories.

Every test case has one correct answer. A selector that returns positions instead of epochs,
maximises, or mishandles NaN returns a wrong answer.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from sluice.config.poc_settings import PocSettings
from sluice.findings.check_outcome import CheckOutcome

SelectEpoch = Callable[[Mapping[int, float]], int]
_TestCase = tuple[str, dict[int, float], int | None]
"""Description, scores by epoch, and the correct epoch (None: the selector must raise an error)."""


def check_epoch_selector(
    select_epoch: SelectEpoch, settings: PocSettings, *, seed: int
) -> CheckOutcome:
    """Call the selector with histories whose best epoch is known.

    The cases: the best score at each candidate epoch in turn, shuffled scores, ties (the earliest
    epoch is correct), NaN and infinite scores (never selected), negative scores, and histories
    without a finite score (the selector must raise an error).

    Args:
        select_epoch: Function from validation loss by epoch to the epoch whose weights are kept.
        settings: Candidate epochs and number of shuffles.
        seed: Seed of the scores.
    """
    num_cases = 0
    wrong_answers: list[str] = []
    for description, scores, correct_epoch in _test_cases(settings, seed):
        num_cases += 1
        # The selector gets a copy, so that it cannot change the test case.
        answer = _call_selector(select_epoch, dict(scores))
        if answer != correct_epoch:
            correct, actual = _describe_answer(correct_epoch), _describe_answer(answer)
            wrong_answers.append(f"{description}: {correct} is required, got {actual}")
    numbers = {"questions": num_cases, "wrong_answers": len(wrong_answers)}
    candidates = settings.selector_epochs
    epochs_text = f"{len(candidates)} candidates, epochs {candidates[0]} to {candidates[-1]}"
    if wrong_answers:
        return CheckOutcome(
            outcome="fail",
            summary=f"{len(wrong_answers)} of {num_cases} answers were wrong ({epochs_text}). "
            f"First: {wrong_answers[0]}.",
            numbers=numbers,
            fault="wrong epoch selection",
        )
    return CheckOutcome(
        outcome="pass",
        summary=f"{num_cases} of {num_cases} answers were correct ({epochs_text}).",
        numbers=numbers,
    )


def _test_cases(settings: PocSettings, seed: int) -> Iterator[_TestCase]:
    epochs = list(settings.selector_epochs)
    rng = np.random.default_rng(seed)

    def worse_scores() -> dict[int, float]:
        return {epoch: 1 + float(rng.random()) for epoch in epochs}

    for best in epochs:
        yield f"best score at epoch {best}", worse_scores() | {best: 0.5}, best
    for _ in range(settings.selector_shuffles):
        # The score decreases by 1 from each epoch to the next better epoch, and half of the scores
        # are negative. The order of the epochs in the mapping is random, too.
        ranked_epochs = [epochs[i] for i in rng.permutation(len(epochs))]
        scores = {epoch: len(epochs) / 2 - rank for rank, epoch in enumerate(ranked_epochs)}
        shuffled_epochs = [epochs[i] for i in rng.permutation(len(epochs))]
        best = ranked_epochs[-1]
        yield (
            f"shuffled scores, best at epoch {best}",
            {e: scores[e] for e in shuffled_epochs},
            best,
        )
    yield from _cases_with_ties_and_nan(epochs, worse_scores)
    yield "an empty history", {}, None
    yield "a history of NaN only", dict.fromkeys(epochs, math.nan), None


def _cases_with_ties_and_nan(
    epochs: list[int], worse_scores: Callable[[], dict[int, float]]
) -> Iterator[_TestCase]:
    first, second, last = epochs[0], epochs[1], epochs[-1]
    middle = epochs[len(epochs) // 2]
    tied_scores = worse_scores() | {second: 0.5, last: 0.5}
    yield f"tie of epochs {second} and {last}", tied_scores, second
    yield (
        f"tie of epochs {second} and {last}, newest first",
        dict(reversed(tied_scores.items())),
        second,
    )
    yield "all scores equal", dict.fromkeys(epochs, 1.0), first
    for nan_epoch in (first, middle, last):
        best = second if nan_epoch != second else first
        yield f"NaN at epoch {nan_epoch}", worse_scores() | {nan_epoch: math.nan, best: 0.5}, best
    only_finite_score = dict.fromkeys(epochs, math.nan) | {middle: 1.0}
    yield f"NaN everywhere but at epoch {middle}", only_finite_score, middle
    yield f"infinity at epoch {first}", worse_scores() | {first: math.inf, last: 0.5}, last


def _call_selector(select_epoch: SelectEpoch, scores: dict[int, float]) -> object:
    try:
        answer = select_epoch(scores)
    except Exception as error:  # an error is correct only for a history without finite scores
        has_finite_score = any(math.isfinite(score) for score in scores.values())
        return f"{type(error).__name__}: {error}" if has_finite_score else None
    return "no epoch (None)" if answer is None else answer


def _describe_answer(answer: object) -> str:
    if answer is None:
        return "an error"
    return f"epoch {answer}" if isinstance(answer, int) else str(answer)
