"""Judges of a known kind, and pairs with a known truth."""

import re

from sluice.evaluation.llm_judge.pairs import AnswerPair, Choice

_ANSWERS = re.compile(r"\[answer ([AB])\]\n(.*?)\n\[end of answer", re.DOTALL)


def answers_in(question: str) -> dict[str, str]:
    """Return the two answers of a question, by the letter they stand under."""
    return dict(_ANSWERS.findall(question))


def better_answer(question: str, temperature: float) -> str:
    """Prefer what holds the word 'good'; a tie when both or none do."""
    assert temperature == 0.0
    good = [letter for letter, text in answers_in(question).items() if "good" in text]
    return f"Because I looked. [[{good[0] if len(good) == 1 else 'C'}]]"


def first_answer(question: str, temperature: float) -> str:
    """Prefer whatever stands first."""
    del question, temperature
    return "[[A]]"


def make_pairs(num: int, *, num_wrong: int = 0) -> list[AnswerPair]:
    """Return pairs of which the candidate, the baseline or neither is good, in turn.

    People say which; of the first ``num_wrong`` pairs they say something else.
    """
    kinds: list[Choice] = ["candidate", "baseline", "tie"]
    return [
        AnswerPair(
            prompt=f"Question {at}",
            candidate="good" if kinds[at % 3] == "candidate" else "bad",
            baseline="good" if kinds[at % 3] == "baseline" else "bad",
            human=kinds[(at + (at < num_wrong)) % 3],
        )
        for at in range(num)
    ]
