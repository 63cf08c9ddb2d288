"""Every rule, and what all of them find in the traces of a run."""

from collections.abc import Sequence

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, RankRule, Rule
from sluice.trace.rules.clip_after_step import CLIP_AFTER_STEP
from sluice.trace.rules.clip_before_unscale import CLIP_BEFORE_UNSCALE
from sluice.trace.rules.eval_while_training import EVAL_WHILE_TRAINING
from sluice.trace.rules.parameters_in_two import PARAMETERS_IN_TWO
from sluice.trace.rules.parameters_outside import PARAMETERS_OUTSIDE
from sluice.trace.rules.parameters_replaced import PARAMETERS_REPLACED
from sluice.trace.rules.scheduler_before_optimizer import SCHEDULER_BEFORE_OPTIMIZER
from sluice.trace.rules.step_before_backward import STEP_BEFORE_BACKWARD
from sluice.trace.rules.train_while_evaluating import TRAIN_WHILE_EVALUATING
from sluice.trace.rules.zero_grad_misplaced import ZERO_GRAD_MISPLACED
from sluice.trace.rules.zero_grad_missing import ZERO_GRAD_MISSING

RULES: tuple[Rule, ...] = (
    ZERO_GRAD_MISPLACED,
    STEP_BEFORE_BACKWARD,
    PARAMETERS_REPLACED,
    CLIP_BEFORE_UNSCALE,
    CLIP_AFTER_STEP,
    EVAL_WHILE_TRAINING,
    PARAMETERS_IN_TWO,
    ZERO_GRAD_MISSING,
    PARAMETERS_OUTSIDE,
    SCHEDULER_BEFORE_OPTIMIZER,
    TRAIN_WHILE_EVALUATING,
)

RANK_RULES: tuple[RankRule, ...] = ()


def judge(trace: Trace) -> tuple[Finding, ...]:
    """Return the findings of every rule over one process."""
    return tuple(finding for rule in RULES for finding in rule(trace))


def judge_ranks(traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """Return the findings between the ranks of a distributed run; none for a single process."""
    if len(traces) < 2:
        return ()
    return tuple(finding for rule in RANK_RULES for finding in rule(traces))
