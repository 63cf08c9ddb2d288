"""Whether evaluation mode is what serving needs: the same answer, whoever else asks (TRACE-4).

Shape legend: B = rows of a batch.
"""

import torch
from torch import Tensor, nn

from sluice.probes.result import ProbeResult, failed
from sluice.probes.twin import ROUNDING, effect, evaluation_twin, output_of, require_rows

NAME, REQUIREMENT = "modes", "TRACE-4"

_DROPOUTS = (nn.modules.dropout._DropoutNd,)
_NORMS = (nn.modules.batchnorm._NormBase,)


def probe_modes(network: nn.Module, x: Tensor, *, seed: int) -> ProbeResult:
    """Pass twice in evaluation mode, and once beside other rows.

    Args:
        network: From ``x`` to outputs whose first dimension counts rows.
        x: At least two rows.
        seed: Of what the copy draws.

    Raises:
        ContractError: There are fewer rows, or the network gives no tensor of floats.
    """
    require_rows(x, at_least=2)
    with evaluation_twin(network, seed=seed) as twin:
        still_training = [name or "the network" for name, m in twin.named_modules() if m.training]
        before = {name: value.clone() for name, value in twin.state_dict().items()}
        first, second = output_of(twin, x), output_of(twin, x)
        changed = [
            name for name, value in twin.state_dict().items() if not _same(before[name], value)
        ]
        half = len(x) // 2
        # Rows of the batch itself: what is made up may be no input at all.
        beside = output_of(twin, torch.cat((x[:half], x[: len(x) - half])))
    return _judged(first, second, beside, x, still_training, changed, _suspects(network))


def _judged(
    first: Tensor,
    second: Tensor,
    beside: Tensor,
    x: Tensor,
    still_training: list[str],
    changed: list[str],
    suspects: tuple[list[str], list[str]],
) -> ProbeResult:
    half = len(x) // 2
    dropouts, norms = suspects
    repeat = effect(first, second)
    numbers: dict[str, float | int | str] = {"rows": len(x), "effect_of_repeating": repeat}
    if still_training:
        return failed(
            NAME,
            REQUIREMENT,
            f"After eval() {_list(still_training)} is still in training mode.",
            "A train() of its own, or a module that sets its mode itself.",
            "Let train(mode) hand the mode on, with super().train(mode).",
            numbers,
        )
    if changed:
        return failed(
            NAME,
            REQUIREMENT,
            f"A pass in evaluation mode changes {_list(changed)}.",
            "Statistics go on being gathered: batch normalisation with training=True.",
            "Hand training=self.training on, and write buffers in training mode only.",
            numbers,
        )
    if not _same(first, second):
        return failed(
            NAME,
            REQUIREMENT,
            f"Two passes over the same {len(x)} rows in evaluation mode differ, by up to "
            f"{repeat:.3g} of the largest output.",
            "Dropout is still on, or something else draws at random"
            + (f"; look at {_list(dropouts)}." if dropouts else "."),
            "Use nn.Dropout, or hand training=self.training to the function.",
            numbers,
        )
    if first.dim() == 0 or len(first) != len(x):
        return ProbeResult(
            name=NAME,
            requirement=REQUIREMENT,
            outcome="insufficient",
            seen=f"Two passes agree bit for bit; outputs {tuple(first.shape)} are not one for each "
            f"of {len(x)} rows, so rows cannot be told apart.",
            numbers=numbers,
            fix="Let the first dimension of the output count rows.",
        )
    share = effect(first[:half], beside[:half])
    control = effect(first[half:], beside[half:])
    numbers |= {"effect_of_other_rows": share, "effect_of_own_row": control}
    if not share <= ROUNDING:
        return failed(
            NAME,
            REQUIREMENT,
            f"With {len(x) - half} other rows beside them the outputs of {half} rows move, by up "
            f"to {share:.3g} of the largest output.",
            "The output of a row depends on the batch: batch normalisation on the batch's own "
            "statistics, or a normalisation over rows"
            + (f"; look at {_list(norms)}." if norms else "."),
            "Keep running statistics and use them in evaluation mode.",
            numbers,
        )
    if not control > ROUNDING:
        return ProbeResult(
            name=NAME,
            requirement=REQUIREMENT,
            outcome="insufficient",
            seen="Two passes agree bit for bit, but outputs do not move with their own rows.",
            numbers=numbers,
            why="The network does not react to its input.",
            fix="Look at its weights: all zero, or units that are never active.",
        )
    return ProbeResult(
        name=NAME,
        requirement=REQUIREMENT,
        outcome="pass",
        seen=f"Two passes over {len(x)} rows agree bit for bit, no buffer moves, and {half} rows "
        f"give the same beside {len(x) - half} other ones.",
        numbers=numbers,
    )


def _suspects(network: nn.Module) -> tuple[list[str], list[str]]:
    """Return the names of dropouts, and of normalisations without running statistics."""
    named = list(network.named_modules())
    dropouts = [name for name, m in named if isinstance(m, _DROPOUTS)]
    norms = [
        name for name, m in named if isinstance(m, _NORMS) and getattr(m, "running_mean", 0) is None
    ]
    return dropouts, norms


def _same(one: Tensor, other: Tensor) -> bool:
    if one.is_floating_point():
        return bool(((one == other) | (one.isnan() & other.isnan())).all())
    return torch.equal(one, other)


def _list(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
