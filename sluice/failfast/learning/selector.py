"""POC-4: does the epoch selector return the best epoch, whatever the history looks like?

Every question has one right answer that is known beforehand, so a selector that looks at
positions, maximises, or trips over NaN gives a wrong one.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from sluice.config.poc_settings import PocSettings
from sluice.findings.finding import Finding

SelectEpoch = Callable[[Mapping[int, float]], int]
_Question = tuple[str, dict[int, float], int | None]


def check_selector(select_epoch: SelectEpoch, settings: PocSettings, *, seed: int) -> Finding:
    """Ask the selector about histories with a known best epoch (POC-4).

    A best score planted at every candidate in turn, shuffled scores, ties (the earliest counts),
    NaN and infinite scores (never chosen), negative scores, and histories without any usable score
    (an error, not an answer).

    Args:
        select_epoch: From validation loss by epoch to the epoch whose weights are kept.
        settings: Candidate epochs and number of shuffles.
        seed: Of the scores.
    """
    asked = 0
    wrong: list[str] = []
    for question, scores, expected in _questions(settings, seed):
        asked += 1
        # The selector gets its own copy: one that changes it must not change the question.
        answer = _ask(select_epoch, dict(scores))
        if answer != expected:
            wrong.append(f"{question}: {_told(expected)} was required, got {_told(answer)}")
    numbers = {"questions": asked, "wrong_answers": len(wrong)}
    candidates = settings.selector_epochs
    span = f"{len(candidates)} candidates, epochs {candidates[0]} to {candidates[-1]}"
    if wrong:
        return Finding(
            outcome="fail",
            summary=f"{len(wrong)} of {asked} answers were wrong ({span}). First: {wrong[0]}.",
            numbers=numbers,
            kind="epoch selector wrong",
        )
    return Finding(
        outcome="pass", summary=f"{asked} of {asked} answers were right ({span}).", numbers=numbers
    )


def _questions(settings: PocSettings, seed: int) -> Iterator[_Question]:
    """Yield what is asked, the scores, and the right answer (None: an error)."""
    epochs = list(settings.selector_epochs)
    rng = np.random.default_rng(seed)

    def others() -> dict[int, float]:
        return {epoch: 1 + float(rng.random()) for epoch in epochs}

    for best in epochs:
        yield f"best planted at epoch {best}", others() | {best: 0.5}, best
    for _ in range(settings.selector_shuffles):
        # From worst to best, half of them negative; the mapping's order says nothing either.
        ranked = [epochs[i] for i in rng.permutation(len(epochs))]
        scores = {epoch: len(epochs) / 2 - rank for rank, epoch in enumerate(ranked)}
        order = [epochs[i] for i in rng.permutation(len(epochs))]
        best = ranked[-1]
        yield f"shuffled scores, best at epoch {best}", {e: scores[e] for e in order}, best
    yield from _ties_and_gaps(epochs, others)
    yield "an empty history", {}, None
    yield "a history of NaN only", dict.fromkeys(epochs, math.nan), None


def _ties_and_gaps(
    epochs: list[int], others: Callable[[], dict[int, float]]
) -> Iterator[_Question]:
    first, second, last = epochs[0], epochs[1], epochs[-1]
    middle = epochs[len(epochs) // 2]
    tied = others() | {second: 0.5, last: 0.5}
    yield f"tie of epochs {second} and {last}", tied, second
    yield f"tie of epochs {second} and {last}, newest first", dict(reversed(tied.items())), second
    yield "all scores equal", dict.fromkeys(epochs, 1.0), first
    for gap in (first, middle, last):
        best = second if gap != second else first
        yield f"NaN at epoch {gap}", others() | {gap: math.nan, best: 0.5}, best
    alone = dict.fromkeys(epochs, math.nan) | {middle: 1.0}
    yield f"NaN everywhere but at epoch {middle}", alone, middle
    yield f"infinity at epoch {first}", others() | {first: math.inf, last: 0.5}, last


def _ask(select_epoch: SelectEpoch, scores: dict[int, float]) -> object:
    try:
        answer = select_epoch(scores)
    except Exception as error:  # a right answer to a history without scores
        usable = any(math.isfinite(score) for score in scores.values())
        return f"{type(error).__name__}: {error}" if usable else None
    return "no epoch (None)" if answer is None else answer


def _told(answer: object) -> str:
    if answer is None:
        return "an error"
    return f"epoch {answer}" if isinstance(answer, int) else str(answer)
