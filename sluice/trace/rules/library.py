"""Every rule, and what all of them find in the traces of a run."""

from collections.abc import Sequence

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, RankRule, Rule
from sluice.trace.rules.accumulation import ACCUMULATION
from sluice.trace.rules.begin_doubled import BEGIN_DOUBLED
from sluice.trace.rules.clip_after_step import CLIP_AFTER_STEP
from sluice.trace.rules.clip_before_unscale import CLIP_BEFORE_UNSCALE
from sluice.trace.rules.constant_column import CONSTANT_COLUMN
from sluice.trace.rules.end_unsupervised import END_UNSUPERVISED
from sluice.trace.rules.eval_while_training import EVAL_WHILE_TRAINING
from sluice.trace.rules.id_range import ID_RANGE
from sluice.trace.rules.labels_independent import LABELS_INDEPENDENT
from sluice.trace.rules.logits_extreme import LOGITS_EXTREME
from sluice.trace.rules.loss_broadcasts import LOSS_BROADCASTS
from sluice.trace.rules.loss_domain import LOSS_DOMAIN
from sluice.trace.rules.non_finite_input import NON_FINITE_INPUT
from sluice.trace.rules.nothing_supervised import NOTHING_SUPERVISED
from sluice.trace.rules.parameters_in_two import PARAMETERS_IN_TWO
from sluice.trace.rules.parameters_outside import PARAMETERS_OUTSIDE
from sluice.trace.rules.parameters_replaced import PARAMETERS_REPLACED
from sluice.trace.rules.rows_leaked import ROWS_LEAKED
from sluice.trace.rules.scheduler_before_optimizer import SCHEDULER_BEFORE_OPTIMIZER
from sluice.trace.rules.splits_differ import SPLITS_DIFFER
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
    ACCUMULATION,
    BEGIN_DOUBLED,
    CONSTANT_COLUMN,
    END_UNSUPERVISED,
    ID_RANGE,
    LABELS_INDEPENDENT,
    LOGITS_EXTREME,
    LOSS_BROADCASTS,
    LOSS_DOMAIN,
    NON_FINITE_INPUT,
    NOTHING_SUPERVISED,
    ROWS_LEAKED,
    SPLITS_DIFFER,
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
