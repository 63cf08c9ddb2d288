"""Run config schemas of the assets: no config, a version number, or an approval.

The schemas use ``dg.String`` and ``dg.Int``. Dagster's Config classes are not used, because they
accept ``{env: NAME}`` in place of a value. Their error messages print the value of this environment
variable, which may be a secret.
"""

import dagster as dg

from sluice.base.errors import SettingsError


def reject_config(instead: str, *, description: str) -> dict[str, dg.Field]:
    """Return a config schema that rejects every entry.

    Dagster's error prints the names of the expected fields and types, and an Enum without values
    accepts nothing. The name of the Enum therefore serves as the error message.

    Args:
        instead: Text for the error message: what the user should do.
        description: Description of the field in the launchpad.
    """
    return {"instead": dg.Field(dg.Enum(instead, []), is_required=False, description=description)}


NO_CONFIG = reject_config(
    "edit the attributes in the pipeline's YAML, or for one run use "
    "'sluice run NAME_OR_FILE --set training.learning_rate=0.01'",
    description="The assets of a pipeline do not read run config. Receipts and lineage record the "
    "settings of the pipeline's YAML.",
)
"""Config schema of the assets whose settings come from the pipeline's YAML."""

VERSION_CONFIG = {
    "version": dg.Field(dg.Int, description="Version number in the registry, 1 or more.")
}
"""Config schema of the assets that operate on one version."""

APPROVAL_CONFIG = {
    **VERSION_CONFIG,
    "actor": dg.Field(dg.String, description="Your name, for the history."),
    "reason": dg.Field(dg.String, description="Why the version may replace production."),
}
"""Config schema of the asset that records an approval."""


def read_requested_version(context: dg.AssetExecutionContext) -> int:
    """Return the version number from the run config (see ``VERSION_CONFIG``).

    Raises:
        SettingsError: The number is below 1.
    """
    version = int(context.op_execution_context.op_config["version"])
    if version < 1:
        raise SettingsError(
            f"version must be 1 or more, got {version}.",
            fix="Give a version number that 'sluice registry list' prints.",
        )
    return version
