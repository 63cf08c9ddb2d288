"""Default feature schema of a workload: its feature columns and its target, as numbers."""

from typing import Any

from sluice.base.errors import ContractError
from sluice.data.schema import Column, Schema


class DerivedFeatureSchema:
    """Default of ``Workload.feature_schema``, derived from the declared columns.

    A schema that a workload assigns, in its class or its constructor, replaces it.
    """

    def __get__(self, workload: Any, cls: Any) -> Schema:
        owner = workload if workload is not None else cls
        features = getattr(owner, "feature_columns", None)
        target = getattr(owner, "target_column", None)
        if features is None or target is None:
            raise ContractError(
                f"{cls.__name__} must declare 'feature_columns' and 'target_column', or "
                "'feature_schema'.",
                fix="Set 'feature_columns' to the names of the input columns and 'target_column' "
                "to the name of the target.",
            )
        kind = "int" if owner.task == "classification" else "float"
        columns = [Column(name=name) for name in features if name != target]
        return Schema(columns=(*columns, Column(name=target, kind=kind)))
