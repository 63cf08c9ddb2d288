"""Deterministic LLM judges, and answer pairs with known labels."""

import re

from sluice.evaluation.llm_judge.pairs import AnswerPair, Choice

_ANSWERS = re.compile(r"\[answer ([AB])\]\n(.*?)\n\[end of answer", re.DOTALL)


def answers_in(question: str) -> dict[str, str]:
    """Return the two answers in a question to the judge, keyed by letter (A or B)."""
    return dict(_ANSWERS.findall(question))


def better_answer(question: str, temperature: float) -> str:
    """Choose the answer that contains the word 'good'; a tie if both or neither do."""
    assert temperature == 0.0
    good = [letter for letter, text in answers_in(question).items() if "good" in text]
    return f"Because I looked. [[{good[0] if len(good) == 1 else 'C'}]]"


def first_answer(question: str, temperature: float) -> str:
    """Choose answer A, as a judge with maximal position bias."""
    del question, temperature
    return "[[A]]"


def make_pairs(num: int, *, num_wrong: int = 0) -> list[AnswerPair]:
    """Return pairs in which, in turn, the candidate, the baseline or neither is good.

    The human label is correct, except for the first ``num_wrong`` pairs.
    """
    kinds: list[Choice] = ["candidate", "baseline", "tie"]
    return [
        AnswerPair(
            prompt=f"Question {row}",
            candidate="good" if kinds[row % 3] == "candidate" else "bad",
            baseline="good" if kinds[row % 3] == "baseline" else "bad",
            human=kinds[(row + (row < num_wrong)) % 3],
        )
        for row in range(num)
    ]
