"""Searched settings of a workload must leave its features as they are."""

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import SettingsError
from sluice.config.pipeline import PipelineSettings
from sluice.data.table import TableRecord, load_table
from sluice.findings.user_code import users_code
from sluice.tuning.parameters import ends
from sluice.tuning.spaces import WORKLOAD, split_path
from sluice.workloads.load import load_workload


def require_same_features(
    pipeline: PipelineSettings, features: TableRecord, raw: TableRecord, store: ArtifactStore
) -> None:
    """Refuse a space over a setting of the workload that features or folds depend on.

    Features are computed once, before the search: a trial with another value of such a setting
    would train on the same rows, and the search would report a difference that does not exist.

    Args:
        pipeline: Its space names the settings.
        features: The features that all trials train on.
        raw: The rows they were computed from.
        store: Holds both.

    Raises:
        SettingsError: The features differ at an end of the range; the setting is named.
    """
    frame, own = None, None
    for path, parameter in pipeline.searched.parameters.items():
        group, name, _ = split_path(path)
        if group != WORKLOAD:
            continue
        if frame is None or own is None:
            frame, own = load_table(raw, store), load_table(features, store)
        for value in ends(parameter):
            settings = pipeline.workload_settings | {name: value}
            workload = load_workload(pipeline.workload, settings, where=path)
            with users_code("compute_features of the workload"):
                made = workload.compute_features(frame.copy())
            if not made.equals(own):
                raise SettingsError(
                    f"'{path}' cannot be searched: with the value {value!r} the workload computes "
                    "other features than those of this run.",
                    cause="Features are computed once, before the search.",
                    fix=f"Take '{path}' out of the space, and compare its values by runs of their "
                    "own (--set workload_settings.NAME=VALUE).",
                )
