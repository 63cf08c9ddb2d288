"""What the launchpad may set: one version number; everything else is fixed before a run starts.

Every type here is a plain one. Dagster's own ``StringSource`` and ``IntSource``, which its Config
classes use for ``str`` and ``int``, accept ``{env: NAME}``, and their errors print that variable.
"""

import dagster as dg

from sluice.base.errors import SettingsError


def refuse_config(instead: str, *, why: str) -> dict[str, dg.Field]:
    """Return a config schema that refuses every entry.

    Dagster's error prints the names of the expected fields and types, and an Enum without values
    accepts nothing: so the error says what to do instead.

    Args:
        instead: What to do, as the error prints it.
        why: Description of the field in the launchpad.
    """
    return {"instead": dg.Field(dg.Enum(instead, []), is_required=False, description=why)}


NO_CONFIG = refuse_config(
    "edit the attributes in the pipeline's YAML, or for one run use "
    "'sluice run NAME_OR_FILE --set training.learning_rate=0.01'",
    why="No asset of a pipeline reads settings from here: receipts and lineage "
    "name those of the pipeline's file.",
)
"""Config schema of the assets whose settings are in the pipeline's file."""

VERSION_CONFIG = {
    "version": dg.Field(dg.Int, description="Version number in the registry, 1 or more.")
}
"""Config schema of the assets that act on one version."""


def requested_version(context: dg.AssetExecutionContext) -> int:
    """Return the version that a run with ``VERSION_CONFIG`` was asked for.

    Raises:
        SettingsError: It is below 1.
    """
    version = int(context.op_execution_context.op_config["version"])
    if version < 1:
        raise SettingsError(
            f"version must be 1 or more, got {version}.",
            fix="Give a version number that 'sluice registry list' prints.",
        )
    return version
