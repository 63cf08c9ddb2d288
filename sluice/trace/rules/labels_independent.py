"""Do the labels depend on the inputs?"""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, pvariance

from sluice.trace.evidence.inputs import PairFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import network_name

_LEAST_ROWS = 400
_LEAST_STEPS = 30
_MANY_STEPS = 100
"""Whose losses at those of a constant answer tell as much as an evaluation, of several classes."""
_DEPENDS, _MAY_DEPEND = 3.0, 2.0
"""Deviations from which targets follow the inputs, and from which numbers or two classes may: a
hundredth of their variance is lost in the noise, and honest all the same."""
_CLASSES_DEPEND = 4.0
"""From which more than two classes do: permuted ones are by chance beyond 3 once in a hundred."""
_LONG_STEPS, _NOTHING = 300, 0.985
"""Steps, and share of the loss of a constant answer that the last half of the losses of two classes
has not come below: as good as an evaluation, as even by heart nothing was learned."""
_AT_PRIOR = 0.97
"""Of the loss of the best constant answer."""
_LEAST_OF_CLASS = 10


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found: dict[int, Finding] = {}
    for network, phase in sorted({(p.network, p.phase) for p in trace.pairs}):
        pairs = [p for p in trace.pairs if (p.network, p.phase) == (network, phase)]
        kinds = {p.kind for p in pairs}
        widths = {p.num_features for p in pairs}
        if len(kinds) > 1 or len(widths) > 1 or _is_same_each_time(pairs):
            continue
        finding = _of(rule, trace, network, pairs, since=pairs[0].step if phase else 0)
        if finding is not None:
            found.setdefault(network, finding)
    return tuple(found.values())


def _of(
    rule: Rule, trace: Trace, network: int, pairs: Sequence[PairFact], *, since: int
) -> Finding | None:
    targets = [t for p in pairs for t in p.targets]
    num_steps = trace.num_steps - since
    if len(targets) < _LEAST_ROWS or num_steps < _LEAST_STEPS or len(set(targets)) < 2:
        return None
    kind, is_class = pairs[0].kind, pairs[0].is_class
    if is_class and Counter(targets).most_common(2)[1][1] < _LEAST_OF_CLASS:
        return None
    several = [p.prior for p in pairs if p.prior is not None]
    prior = fmean(several) if several else _prior(kind, targets)
    passes = [
        e for e in trace.evaluations if (e.network, e.kind) == (network, kind) and e.step >= since
    ]
    later = [e.mean for e in passes if e.step > since]
    judged = later or [e.mean for e in passes]
    if prior is None or any(not v >= _AT_PRIOR * prior for v in judged):
        return None
    learned = _losses(trace, since)
    if not judged and (not learned or fmean(learned) < _AT_PRIOR * prior):
        return None
    has_classes = is_class and len(set(targets)) > 2
    deviations = _dependence(pairs, targets)
    if not deviations < (_CLASSES_DEPEND if has_classes else _DEPENDS):
        return None
    is_plain = has_classes or deviations < _MAY_DEPEND
    is_long = has_classes and num_steps >= _MANY_STEPS
    if learned and len(set(targets)) == 2:
        late = fmean(learned[len(learned) // 2 :])
        is_long = num_steps >= _LONG_STEPS and late >= _NOTHING * prior
    is_sure = (bool(judged) or is_long) and not pairs[0].is_whole and is_plain
    name = network_name(trace, network)
    seen = (
        f"its evaluations come to {min(judged):.4g} at best"
        if judged
        else f"its losses are {fmean(learned):.4g} on average"
    )
    return rule.finding(
        severity="error" if is_sure else "confirm",
        step=pairs[0].step + 1,
        what=f"{name}: over {len(targets)} rows the targets follow the inputs no more than "
        f"shuffled ones do ({deviations:.1f} deviations), and {seen}, where a constant answer "
        f"has {prior:.4g}.",
        cause="Targets that do not belong to their rows can only be learned by heart.",
        fix="Check that inputs and targets are shuffled, sorted and joined together.",
        confidence=0.95 if is_sure else 0.6,
        num_rows=len(targets),
        deviations=deviations,
        prior=prior,
    )


def _is_same_each_time(pairs: Sequence[PairFact]) -> bool:
    """Every batch has the same targets in the same order, as for real and made images."""
    whole = [p.targets for p in pairs]
    shortest = min(map(len, whole))
    return len(whole) > 1 and len({t[:shortest] for t in whole}) == 1


def _losses(trace: Trace, since: int) -> list[float]:
    return [v for n in trace.numbers if n.step > since for v in n.losses if math.isfinite(v)]


def _prior(kind: str, targets: Sequence[float]) -> float | None:
    """Return the loss of the best constant answer; None when it has no plain form."""
    if kind in ("cross_entropy", "nll_loss"):
        shares = [count / len(targets) for count in Counter(targets).values()]
        return -sum(p * math.log(p) for p in shares)
    if kind.startswith("binary_cross_entropy"):
        p = fmean(targets)
        return -p * math.log(p) - (1 - p) * math.log(1 - p) if 0 < p < 1 else None
    if kind == "mse_loss":
        return pvariance(targets)
    if kind == "l1_loss":
        middle = sorted(targets)[len(targets) // 2]
        return fmean(abs(t - middle) for t in targets)
    return None


def _dependence(pairs: Sequence[PairFact], targets: Sequence[float]) -> float:
    import torch

    from sluice.trace.dependence import dependence
    from sluice.trace.pairs import unpacked

    features = torch.cat([unpacked(p.features, p.num_features) for p in pairs])
    return dependence(features, targets, is_class=pairs[0].is_class or len(set(targets)) == 2)


LABELS_INDEPENDENT = Rule(
    name="the labels depend on the inputs",
    fault="labels independent of inputs",
    requirement="TRACE-2",
    requires="400 rows with a target each, 30 steps, and evaluations by the same loss, or several "
    "classes and 100 steps, or two and 300; without these it asks for confirmation.",
    contradicted_by="A relation that shows in no distance between rows, such as parity.",
    abstains="An evaluation was better than the best constant answer, or targets stand in the "
    "same order in each batch.",
    judge=_judge,
)
