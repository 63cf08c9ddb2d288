"""Every rule, and what all of them find in the traces of a run."""

from collections.abc import Sequence

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, RankRule, Rule
from sluice.trace.rules.accumulation import ACCUMULATION
from sluice.trace.rules.begin_doubled import BEGIN_DOUBLED
from sluice.trace.rules.checkpoint_not_loaded import CHECKPOINT_NOT_LOADED
from sluice.trace.rules.clip_after_step import CLIP_AFTER_STEP
from sluice.trace.rules.clip_before_unscale import CLIP_BEFORE_UNSCALE
from sluice.trace.rules.clipping_unsuited import CLIPPING_UNSUITED
from sluice.trace.rules.columns_reordered import COLUMNS_REORDERED
from sluice.trace.rules.constant_column import CONSTANT_COLUMN
from sluice.trace.rules.constant_start import CONSTANT_START
from sluice.trace.rules.dead_units import DEAD_UNITS
from sluice.trace.rules.end_unsupervised import END_UNSUPERVISED
from sluice.trace.rules.epoch_order import EPOCH_ORDER
from sluice.trace.rules.eval_while_training import EVAL_WHILE_TRAINING
from sluice.trace.rules.freeze_unread import FREEZE_UNREAD
from sluice.trace.rules.frozen import FROZEN
from sluice.trace.rules.gradient_cut import GRADIENT_CUT
from sluice.trace.rules.id_range import ID_RANGE
from sluice.trace.rules.labels_independent import LABELS_INDEPENDENT
from sluice.trace.rules.later_tokens import LATER_TOKENS
from sluice.trace.rules.logits_extreme import LOGITS_EXTREME
from sluice.trace.rules.loss_broadcasts import LOSS_BROADCASTS
from sluice.trace.rules.loss_domain import LOSS_DOMAIN
from sluice.trace.rules.loss_leaves import LOSS_LEAVES
from sluice.trace.rules.loss_not_falling import LOSS_NOT_FALLING
from sluice.trace.rules.loss_not_finite import LOSS_NOT_FINITE
from sluice.trace.rules.loss_without_path import LOSS_WITHOUT_PATH
from sluice.trace.rules.moments_unstable import MOMENTS_UNSTABLE
from sluice.trace.rules.non_finite_gradient import NON_FINITE_GRADIENT
from sluice.trace.rules.non_finite_input import NON_FINITE_INPUT
from sluice.trace.rules.nothing_supervised import NOTHING_SUPERVISED
from sluice.trace.rules.overfitting import OVERFITTING
from sluice.trace.rules.padding_inverted import PADDING_INVERTED
from sluice.trace.rules.parameters_in_two import PARAMETERS_IN_TWO
from sluice.trace.rules.parameters_outside import PARAMETERS_OUTSIDE
from sluice.trace.rules.parameters_replaced import PARAMETERS_REPLACED
from sluice.trace.rules.ranks_diverge import RANKS_DIVERGE
from sluice.trace.rules.ranks_labels import RANKS_LABELS
from sluice.trace.rules.ranks_same_rows import RANKS_SAME_ROWS
from sluice.trace.rules.ranks_shuffle import RANKS_SHUFFLE
from sluice.trace.rules.rate_too_high import RATE_TOO_HIGH
from sluice.trace.rules.rate_zero import RATE_ZERO
from sluice.trace.rules.resume_lost import RESUME_LOST
from sluice.trace.rules.resume_unread import RESUME_UNREAD
from sluice.trace.rules.rounded_away import ROUNDED_AWAY
from sluice.trace.rules.rows_leaked import ROWS_LEAKED
from sluice.trace.rules.scaler_skips import SCALER_SKIPS
from sluice.trace.rules.schedule_early import SCHEDULE_EARLY
from sluice.trace.rules.schedule_slow import SCHEDULE_SLOW
from sluice.trace.rules.scheduler_before_optimizer import SCHEDULER_BEFORE_OPTIMIZER
from sluice.trace.rules.selection_still import SELECTION_STILL
from sluice.trace.rules.splits_differ import SPLITS_DIFFER
from sluice.trace.rules.step_before_backward import STEP_BEFORE_BACKWARD
from sluice.trace.rules.tie_lost import TIE_LOST
from sluice.trace.rules.train_while_evaluating import TRAIN_WHILE_EVALUATING
from sluice.trace.rules.underflow import UNDERFLOW
from sluice.trace.rules.unregistered import UNREGISTERED
from sluice.trace.rules.vanishing import VANISHING
from sluice.trace.rules.weights_still import WEIGHTS_STILL
from sluice.trace.rules.windows_shared import WINDOWS_SHARED
from sluice.trace.rules.worker_streams import WORKER_STREAMS
from sluice.trace.rules.wrapper_bypassed import WRAPPER_BYPASSED
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
    FREEZE_UNREAD,
    LOSS_WITHOUT_PATH,
    TIE_LOST,
    UNDERFLOW,
    ROUNDED_AWAY,
    NON_FINITE_GRADIENT,
    DEAD_UNITS,
    CONSTANT_START,
    VANISHING,
    RATE_TOO_HIGH,
    LOSS_LEAVES,
    LOSS_NOT_FINITE,
    LOSS_NOT_FALLING,
    WEIGHTS_STILL,
    CHECKPOINT_NOT_LOADED,
    CLIPPING_UNSUITED,
    EPOCH_ORDER,
    MOMENTS_UNSTABLE,
    RATE_ZERO,
    RESUME_LOST,
    RESUME_UNREAD,
    SCALER_SKIPS,
    SCHEDULE_EARLY,
    SCHEDULE_SLOW,
    SELECTION_STILL,
    WORKER_STREAMS,
    WRAPPER_BYPASSED,
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
    WINDOWS_SHARED,
    SPLITS_DIFFER,
    COLUMNS_REORDERED,
    OVERFITTING,
)

RANK_RULES: tuple[RankRule, ...] = (
    RANKS_DIVERGE,
    RANKS_LABELS,
    RANKS_SAME_ROWS,
    RANKS_SHUFFLE,
)


def judge(trace: Trace) -> tuple[Finding, ...]:
    """Return the findings of every rule over one process.

    Raises:
        Exception: A rule failed; to hear the others all the same, ask ``judge_all``.
    """
    return tuple(finding for rule in RULES for finding in rule(trace))


def judge_all(trace: Trace) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return the findings of all rules that can judge a process, and which failed, as text."""
    found: list[Finding] = []
    failed = []
    for rule in RULES:
        try:
            found += rule(trace)
        except Exception as error:  # what the other rules found is not lost with it
            failed.append(f"Not judged: whether {rule.name} ({type(error).__name__}: {error}).")
    return tuple(found), tuple(failed)


def judge_ranks(traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """Return the findings between the ranks of a distributed run; none for a single process."""
    if len(traces) < 2:
        return ()
    return tuple(finding for rule in RANK_RULES for finding in rule(traces))
