"""Check that a search does not vary workload settings on which the features depend."""

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import SettingsError
from sluice.config.resolved import SearchInputs
from sluice.data.table import TableRecord, load_table
from sluice.findings.user_code import wrap_user_errors
from sluice.tuning.parameters import boundary_values
from sluice.tuning.spaces import WORKLOAD_GROUP, split_path
from sluice.workloads.load import load_workload


def require_same_features(
    inputs: SearchInputs, features: TableRecord, raw: TableRecord, store: ArtifactStore
) -> None:
    """Raise an error if the search space contains a setting that changes the features.

    Features are computed once, before the search. A trial with another value of the setting would
    train on the same features. The search would then report an effect that does not exist.

    Args:
        inputs: Search space and workload.
        features: Features that all trials train on.
        raw: Raw rows from which they were computed.
        store: Artifact store with both tables.

    Raises:
        SettingsError: The features differ for an extreme value or an option of a setting, which the
            message names.
    """
    raw_rows, expected_features = None, None
    for path, parameter in inputs.space.parameters.items():
        group, name, _ = split_path(path)
        if group != WORKLOAD_GROUP:
            continue
        if raw_rows is None or expected_features is None:
            raw_rows, expected_features = load_table(raw, store), load_table(features, store)
        for value in boundary_values(parameter):
            settings = {**inputs.base.workload_settings, name: value}
            workload = load_workload(inputs.base.path, settings, where=path)
            with wrap_user_errors("compute_features of the workload"):
                features_of_value = workload.compute_features(raw_rows.copy())
            if not features_of_value.equals(expected_features):
                raise SettingsError(
                    f"'{path}' cannot be searched: with the value {value!r}, the workload computes "
                    "features that differ from the features of this run.",
                    cause="Features are computed once, before the search.",
                    fix=f"Remove '{path}' from the search space, and compare its values in "
                    f"separate runs (--set workload_settings.{name}=VALUE).",
                )
