"""Every rule, and what all of them find in the traces of a run."""

from collections.abc import Sequence

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, RankRule, Rule
from sluice.trace.rules.clip_after_step import CLIP_AFTER_STEP
from sluice.trace.rules.clip_before_unscale import CLIP_BEFORE_UNSCALE
from sluice.trace.rules.constant_start import CONSTANT_START
from sluice.trace.rules.dead_units import DEAD_UNITS
from sluice.trace.rules.eval_while_training import EVAL_WHILE_TRAINING
from sluice.trace.rules.frozen import FROZEN
from sluice.trace.rules.gradient_cut import GRADIENT_CUT
from sluice.trace.rules.later_tokens import LATER_TOKENS
from sluice.trace.rules.loss_not_falling import LOSS_NOT_FALLING
from sluice.trace.rules.loss_not_finite import LOSS_NOT_FINITE
from sluice.trace.rules.loss_without_path import LOSS_WITHOUT_PATH
from sluice.trace.rules.non_finite_gradient import NON_FINITE_GRADIENT
from sluice.trace.rules.padding_inverted import PADDING_INVERTED
from sluice.trace.rules.parameters_in_two import PARAMETERS_IN_TWO
from sluice.trace.rules.parameters_outside import PARAMETERS_OUTSIDE
from sluice.trace.rules.parameters_replaced import PARAMETERS_REPLACED
from sluice.trace.rules.rate_too_high import RATE_TOO_HIGH
from sluice.trace.rules.rounded_away import ROUNDED_AWAY
from sluice.trace.rules.scheduler_before_optimizer import SCHEDULER_BEFORE_OPTIMIZER
from sluice.trace.rules.step_before_backward import STEP_BEFORE_BACKWARD
from sluice.trace.rules.tie_lost import TIE_LOST
from sluice.trace.rules.train_while_evaluating import TRAIN_WHILE_EVALUATING
from sluice.trace.rules.underflow import UNDERFLOW
from sluice.trace.rules.unregistered import UNREGISTERED
from sluice.trace.rules.vanishing import VANISHING
from sluice.trace.rules.weights_still import WEIGHTS_STILL
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
    PADDING_INVERTED,
    LATER_TOKENS,
    GRADIENT_CUT,
    UNREGISTERED,
    FROZEN,
    LOSS_WITHOUT_PATH,
    TIE_LOST,
    UNDERFLOW,
    ROUNDED_AWAY,
    NON_FINITE_GRADIENT,
    DEAD_UNITS,
    CONSTANT_START,
    VANISHING,
    RATE_TOO_HIGH,
    LOSS_NOT_FINITE,
    LOSS_NOT_FALLING,
    WEIGHTS_STILL,
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
