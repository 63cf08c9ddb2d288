"""One (seed, fold) unit on several processes that fit it together."""

import dataclasses
import functools

from sluice.base.errors import SluiceError
from sluice.cluster.ray_train import Tell, run_on_ranks
from sluice.cluster.settings import ComputeSettings
from sluice.training.distributed import GroupRanks, told_when_lost
from sluice.training.members import Member
from sluice.training.unit import Clock, Hear, UnitSpec, train_unit, utc_now


def train_unit_on_ranks(
    spec: UnitSpec, on_event: Hear, *, compute: ComputeSettings, clock: Clock = utc_now
) -> Member:
    """Fit one unit by ``spec.ranks`` processes, or return it when it is finished already.

    Whatever dies, it ends with the bits of a training that nothing happened to: all start again
    from the last checkpoint.

    Args:
        spec: What to fit. On a cluster its folders must be the same for all machines.
        on_event: Hears of the unit's progress, in this process. A unit whose processes were lost
            starts more than once.
        compute: Where, and what each process reserves.
        clock: Gives the time of the log's events; importable.

    Raises:
        SluiceError: The unit failed; the message names its seed and fold.
        SettingsError: There is not enough for all ranks at the same time.
    """
    spec = dataclasses.replace(spec, artifacts=spec.artifacts.absolute(), runs=spec.runs.absolute())
    fit = functools.partial(_fit, spec, clock)
    try:
        return run_on_ranks(fit, compute=compute, folder=spec.runs, hear=on_event)
    except SluiceError as error:
        what = f"{spec.name}: {error.what}"
        raise type(error)(what, cause=error.cause, fix=error.fix) from error


def _fit(spec: UnitSpec, clock: Clock, tell: Tell) -> Member:
    ranks = GroupRanks()
    with told_when_lost(ranks.split.rank):
        return train_unit(spec, tell, clock=clock, ranks=ranks)
