"""Search spaces as configurations of Ray Tune."""

from collections.abc import Mapping
from typing import Any

from sluice.tuning.parameters import Params
from sluice.tuning.spaces import Setup, Space


def decode(space: Space, base: Setup, config: Mapping[str, Any]) -> Params:
    """Return the values of all active parameters in a configuration of Tune.

    Args:
        space: The searched parameters.
        base: Settings that conditions on parameters outside the space are read from.
        config: Values by dotted path; those of inactive parameters are left out.
    """
    return space.choose(base, lambda path, _: config[path])
