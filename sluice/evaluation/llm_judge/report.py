"""What a language model prefers, and whether its word counts (LLM-1)."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.evaluation.llm_judge.asking import Ask, Votes, ask_pair
from sluice.evaluation.llm_judge.pairs import Choice, Pair
from sluice.evaluation.llm_judge.settings import JudgeSettings

Trust = Literal["trusted", "not trusted", "insufficient"]


class Share(Record):
    """How often something was so, and how sure that is."""

    count: int
    of: int
    lower: float = Field(description="One-sided exact lower bound of the rate.")

    @property
    def rate(self) -> float:
        """The share that was seen."""
        return self.count / self.of if self.of else 0.0

    def __str__(self) -> str:
        return f"{self.count} of {self.of} ({self.rate:.0%}, at least {self.lower:.0%})"


class JudgeReport(Record):
    """The preferences of a judge over pairs, and what they are worth."""

    trust: Trust
    reason: str = Field(description="One sentence for people.")
    self_agreement: Share = Field(description="Pairs on which all its answers are the same.")
    order_agreement: Share = Field(description="Pairs on which both orders give the same choice.")
    human_agreement: Share = Field(description="Labelled pairs on which its choice is theirs.")
    required_self_agreement: float
    required_human_agreement: float = Field(
        description="The setting, or the share of the commonest label where that is larger."
    )
    first_place_share: float | None = Field(
        description="Of the answers that are no tie, those for what stood first; 0.5 is no bias."
    )
    unread_answers: int = Field(description="Answers without a word that can be read.")
    num_answers: int
    candidate_wins: int
    baseline_wins: int
    ties: int
    undecided: int = Field(description="Pairs whose answers could not be read.")
    p_value: float = Field(description="Exact, two-sided, of wins being equally likely.")
    preferred: Choice | None = Field(
        description="Who wins beyond chance, 'tie' for nobody; None of a judge not trusted."
    )


def judge_pairs(
    ask: Ask,
    pairs: Sequence[Pair],
    settings: JudgeSettings,
    *,
    heard: Callable[[int], None] = lambda _: None,
) -> JudgeReport:
    """Ask a judge about every pair and say whether it may be trusted.

    Trusted is a judge whose agreement with itself and with people is above what the settings ask
    for, by the lower bounds. Always saying what people say most often is no agreement: theirs must
    be above the share of the commonest label, too.

    Args:
        ask: The judge.
        pairs: At least one; those with a label say what people think.
        settings: How often it is asked, and the thresholds.
        heard: Told the number of pairs done, after each.

    Raises:
        ContractError: There are no pairs, or the judge raised or returned no text.

    Cost:
        Two times ``repeats`` questions a pair.

    Assumes:
        Pairs are independent: one answer pair for a prompt.
    """
    if not pairs:
        raise ContractError("A judge needs at least one pair, got none.", fix="Give some pairs.")
    votes = []
    for done, pair in enumerate(pairs, start=1):
        votes.append(ask_pair(ask, pair, repeats=settings.repeats))
        heard(done)
    return summarise(pairs, votes, settings)


def summarise(
    pairs: Sequence[Pair], votes: Sequence[Votes], settings: JudgeSettings
) -> JudgeReport:
    """Return the report of answers that were given, one of ``votes`` for each pair."""
    choices = [v.choice for v in votes]
    wins = Counter(choices)
    labelled = [(p.human, c) for p, c in zip(pairs, choices, strict=True) if p.human is not None]
    commonest = max(Counter(human for human, _ in labelled).values(), default=0)
    human = _share(sum(h == c for h, c in labelled), len(labelled), settings)
    own = _share(sum(v.agree for v in votes), len(votes), settings)
    required = max(settings.min_human_agreement, commonest / len(labelled) if labelled else 0.0)
    trust, reason = _trust(own, human, settings, required=required)
    p_value = _sign_test(wins["candidate"], wins["baseline"])
    same = sum(one == other is not None for one, other in (v.by_order for v in votes))
    said = [a for v in votes for a in (*v.candidate_first, *v.baseline_first)]
    return JudgeReport(
        trust=trust,
        reason=reason,
        self_agreement=own,
        order_agreement=_share(same, len(votes), settings),
        human_agreement=human,
        required_self_agreement=settings.min_self_agreement,
        required_human_agreement=required,
        first_place_share=_first_place_share(votes),
        unread_answers=said.count(None),
        num_answers=len(said),
        candidate_wins=wins["candidate"],
        baseline_wins=wins["baseline"],
        ties=wins["tie"],
        undecided=wins[None],
        p_value=p_value,
        preferred=_preferred(wins, p_value, settings) if trust == "trusted" else None,
    )


def _trust(
    own: Share, human: Share, settings: JudgeSettings, *, required: float
) -> tuple[Trust, str]:
    if human.of < settings.min_labelled:
        return "insufficient", (
            f"{human.of} pairs have a person's label, {settings.min_labelled} are required before "
            "its agreement with people says anything. Label more pairs."
        )
    if not own.lower > settings.min_self_agreement:
        return "not trusted", (
            f"It agrees with itself on {own}, more than {settings.min_self_agreement:.0%} is "
            "required for certain. Ask a stronger model, or clearer pairs."
        )
    if not human.lower > required:
        return "not trusted", (
            f"It agrees with people on {human}, more than {required:.0%} is required for certain. "
            "Ask a stronger model, or label more pairs, also of rarer labels."
        )
    return "trusted", f"It agrees with itself on {own} and with people on {human}."


def _preferred(wins: Counter[Choice | None], p_value: float, settings: JudgeSettings) -> Choice:
    if not p_value < 1 - settings.confidence:
        return "tie"
    return "candidate" if wins["candidate"] > wins["baseline"] else "baseline"


def _share(count: int, of: int, settings: JudgeSettings) -> Share:
    # Imported here: scipy.stats takes a second.
    from scipy.stats import beta

    lower = float(beta.ppf(1 - settings.confidence, count, of - count + 1)) if count else 0.0
    return Share(count=count, of=of, lower=lower)


def _sign_test(ours: int, theirs: int) -> float:
    from scipy.stats import binomtest

    return float(binomtest(ours, ours + theirs).pvalue) if ours + theirs else 1.0


def _first_place_share(votes: Sequence[Votes]) -> float | None:
    first = sum(
        v.candidate_first.count("candidate") + v.baseline_first.count("baseline") for v in votes
    )
    second = sum(
        v.candidate_first.count("baseline") + v.baseline_first.count("candidate") for v in votes
    )
    return first / (first + second) if first + second else None
