"""What the launchpad may set: nothing, for assets whose settings are in the pipeline's file."""

import dagster as dg

NO_CONFIG = {
    "instead": dg.Field(
        dg.Enum(
            "edit the attributes in the pipeline's YAML, or for one run use "
            "'sluice run NAME_OR_FILE --set training.learning_rate=0.01'",
            [],
        ),
        is_required=False,
        description="No asset of a pipeline reads settings from here: receipts and lineage "
        "name those of the pipeline's file.",
    )
}
"""Config schema that refuses every entry. Dagster's error prints the names of the expected fields
and types, and an Enum without values accepts nothing: so the error names what to do instead."""
