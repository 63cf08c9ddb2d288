"""Runs an LLM judge on pairs of answers, and reports its preferences and whether to trust it."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.evaluation.llm_judge.pairs import AnswerPair, Choice
from sluice.evaluation.llm_judge.pairwise import Ask, PairVotes, ask_pair
from sluice.evaluation.llm_judge.settings import JudgeSettings

Trust = Literal["trusted", "not trusted", "insufficient"]


class AgreementRate(Record):
    """Share of pairs with agreement, and the exact lower confidence bound of the share."""

    count: int = Field(description="Number of pairs with agreement.")
    of: int = Field(description="Number of all pairs that were compared.")
    lower: float = Field(description="One-sided exact lower confidence bound of the share.")

    @property
    def rate(self) -> float:
        """Observed share."""
        return self.count / self.of if self.of else 0.0

    def __str__(self) -> str:
        return f"{self.count} of {self.of} ({self.rate:.0%}, lower bound {self.lower:.0%})"


class JudgeReport(Record):
    """Preferences of a judge, and how well it agrees with itself and with people."""

    trust: Trust
    reason: str = Field(description="Reason why the judge is trusted or not, in sentences.")
    self_agreement: AgreementRate = Field(
        description="Pairs on which all answers of the judge are the same."
    )
    order_agreement: AgreementRate = Field(
        description="Pairs on which both orders give the same choice."
    )
    human_agreement: AgreementRate = Field(
        description="Labelled pairs on which the judge agrees with the person."
    )
    required_self_agreement: float
    required_human_agreement: float = Field(
        description="Threshold that the lower bound of the agreement with people must exceed: "
        "``min_human_agreement``, or the share of the most frequent label if that is larger."
    )
    first_place_share: float | None = Field(
        description="Share of the choices, without ties, that prefer the first answer. A value "
        "other than 0.5 is a position bias."
    )
    unparsed_answers: int = Field(
        description="Number of answers of the judge that contain no choice."
    )
    num_answers: int
    candidate_wins: int
    baseline_wins: int
    ties: int
    undecided: int = Field(
        description="Number of pairs for which most answers in one order contain no choice."
    )
    p_value: float = Field(
        description="Two-sided p-value of the hypothesis that candidate and baseline win equally "
        "often, by the exact sign test."
    )
    preferred: Choice | None = Field(
        description="Arm that wins significantly more often; 'tie' if none does, None if the judge "
        "is not trusted."
    )


def judge_pairs(
    ask: Ask,
    pairs: Sequence[AnswerPair],
    settings: JudgeSettings,
    *,
    on_pair: Callable[[int], None] = lambda _: None,
) -> JudgeReport:
    """Ask a judge about every pair, and determine whether it can be trusted.

    A judge is trusted if the lower bounds of its agreement with itself and with people are above
    the thresholds of the settings. The agreement with people must also be above the share of the
    most frequent label, because a judge that always makes the same choice reaches that share.

    Args:
        ask: The judge.
        pairs: Pairs, at least one. The label of a pair is the choice of a person.
        settings: Number of repeats, and the thresholds.
        on_pair: Called after each pair with the number of finished pairs.

    Raises:
        ContractError: There are no pairs, or the judge raised an error or returned no text.

    Cost:
        ``2 * repeats`` questions per pair.

    Assumes:
        Pairs are independent: one pair of answers for each prompt.
    """
    if not pairs:
        raise ContractError(
            "A judge needs at least one pair, got none.", fix="Add pairs of answers."
        )
    votes = []
    for num_done, pair in enumerate(pairs, start=1):
        votes.append(ask_pair(ask, pair, repeats=settings.repeats))
        on_pair(num_done)
    return summarise(pairs, votes, settings)


def summarise(
    pairs: Sequence[AnswerPair], votes: Sequence[PairVotes], settings: JudgeSettings
) -> JudgeReport:
    """Return the report on the judge from its votes on each pair."""
    pair_choices = [pair_votes.choice for pair_votes in votes]
    choice_counts = Counter(pair_choices)
    human_and_judge = [
        (pair.human, choice)
        for pair, choice in zip(pairs, pair_choices, strict=True)
        if pair.human is not None
    ]
    label_counts = Counter(human for human, _ in human_and_judge)
    max_label_share = max(label_counts.values()) / len(human_and_judge) if human_and_judge else 0.0
    human_agreement = _agreement_rate(
        sum(human == judge for human, judge in human_and_judge), len(human_and_judge), settings
    )
    self_agreement = _agreement_rate(
        sum(pair_votes.is_unanimous for pair_votes in votes), len(votes), settings
    )
    required_agreement = max(settings.min_human_agreement, max_label_share)
    trust, reason = _decide_trust(
        self_agreement, human_agreement, settings, required_agreement=required_agreement
    )
    p_value = _sign_test(choice_counts["candidate"], choice_counts["baseline"])
    num_same_order = sum(
        first == second and first is not None
        for first, second in (pair_votes.by_order for pair_votes in votes)
    )
    all_choices = [
        choice
        for pair_votes in votes
        for choice in (*pair_votes.candidate_first, *pair_votes.baseline_first)
    ]
    return JudgeReport(
        trust=trust,
        reason=reason,
        self_agreement=self_agreement,
        order_agreement=_agreement_rate(num_same_order, len(votes), settings),
        human_agreement=human_agreement,
        required_self_agreement=settings.min_self_agreement,
        required_human_agreement=required_agreement,
        first_place_share=_first_place_share(votes),
        unparsed_answers=all_choices.count(None),
        num_answers=len(all_choices),
        candidate_wins=choice_counts["candidate"],
        baseline_wins=choice_counts["baseline"],
        ties=choice_counts["tie"],
        undecided=choice_counts[None],
        p_value=p_value,
        preferred=_significant_winner(choice_counts, p_value, settings)
        if trust == "trusted"
        else None,
    )


def _decide_trust(
    self_agreement: AgreementRate,
    human_agreement: AgreementRate,
    settings: JudgeSettings,
    *,
    required_agreement: float,
) -> tuple[Trust, str]:
    """Return whether to trust the judge, and the reason."""
    if human_agreement.of < settings.min_labelled:
        return "insufficient", (
            f"Human labels exist for {pluralize(human_agreement.of, 'pair')}, required "
            f"{settings.min_labelled} to estimate the agreement with people. Label more pairs."
        )
    if not self_agreement.lower > settings.min_self_agreement:
        return "not trusted", (
            f"The judge agrees with itself on {self_agreement}; the lower bound must be above "
            f"{settings.min_self_agreement:.0%}. Use a stronger model, or clearer pairs."
        )
    if not human_agreement.lower > required_agreement:
        return "not trusted", (
            f"The judge agrees with people on {human_agreement}; the lower bound must be above "
            f"{required_agreement:.0%}. Use a stronger model, or label more pairs, including rarer "
            "labels."
        )
    return "trusted", (
        f"The judge agrees with itself on {self_agreement} and with people on {human_agreement}."
    )


def _significant_winner(
    choice_counts: Counter[Choice | None], p_value: float, settings: JudgeSettings
) -> Choice:
    if not p_value < 1 - settings.confidence:
        return "tie"
    return "candidate" if choice_counts["candidate"] > choice_counts["baseline"] else "baseline"


def _agreement_rate(count: int, total: int, settings: JudgeSettings) -> AgreementRate:
    # Imported here, because scipy.stats takes a second.
    from scipy.stats import beta

    lower = float(beta.ppf(1 - settings.confidence, count, total - count + 1)) if count else 0.0
    return AgreementRate(count=count, of=total, lower=lower)


def _sign_test(candidate_wins: int, baseline_wins: int) -> float:
    from scipy.stats import binomtest

    num_wins = candidate_wins + baseline_wins
    return float(binomtest(candidate_wins, num_wins).pvalue) if num_wins else 1.0


def _first_place_share(votes: Sequence[PairVotes]) -> float | None:
    num_first_preferred = sum(
        pair_votes.candidate_first.count("candidate") + pair_votes.baseline_first.count("baseline")
        for pair_votes in votes
    )
    num_second_preferred = sum(
        pair_votes.candidate_first.count("baseline") + pair_votes.baseline_first.count("candidate")
        for pair_votes in votes
    )
    num_decided = num_first_preferred + num_second_preferred
    return num_first_preferred / num_decided if num_decided else None
