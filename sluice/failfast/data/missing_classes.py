"""Finds declared classes that occur in no row, in no train row of a fold, or in no test row."""

import numpy as np
import pandas as pd

from sluice.base.pluralize import pluralize
from sluice.data.folds import Fold
from sluice.findings.check_outcome import CheckOutcome
from sluice.workloads.image_folder import ImageFolderWorkload
from sluice.workloads.workload import Workload

_MAX_NAMES = 5
"""Maximum number of classes that a finding names."""


def find_missing_classes(workload: Workload, frame: pd.DataFrame) -> CheckOutcome | None:
    """Return a failed outcome if a declared class occurs in no row; None otherwise.

    A target column is checked only if all of its values are positions in ``classes``.

    Args:
        workload: Declares the task, ``classes`` and the target column.
        frame: Feature frame, with the positions of the classes in the target column.
    """
    classes = tuple(map(str, workload.classes))
    if workload.task != "classification" or not classes:
        return None
    present_positions = _present_positions(frame, workload.target_column, len(classes))
    if present_positions is None or len(present_positions) == len(classes):
        return None
    missing_names = [
        name for position, name in enumerate(classes) if position not in present_positions
    ]
    is_single_class = len(missing_names) == 1
    subject, verb = _name_classes(missing_names), "has" if is_single_class else "have"
    return CheckOutcome(
        outcome="fail",
        summary=f"Every class in 'classes' must have an example, but {subject} {verb} "
        f"none among {pluralize(len(frame), 'row')}.{_describe_folders(workload, missing_names)}",
        numbers={"rows": len(frame), "classes": len(classes), "missing": len(missing_names)},
        fault="raw schema mismatch",
        cause="The examples were moved or removed, or the class has another name in the source. "
        "A network cannot learn a class without examples, and no metric includes the class.",
        fix="Provide examples of the class, or remove it from 'classes' of the workload."
        if is_single_class
        else "Provide examples of these classes, or remove them from 'classes' of the workload.",
    )


def find_classes_missing_in_splits(
    workload: Workload, frame: pd.DataFrame, folds: tuple[Fold, ...]
) -> CheckOutcome | None:
    """Return a warning for classes without a train row in a fold, or without any test row, or None.

    Args:
        workload: Declares the task, ``classes`` and the target column.
        frame: Feature frame with at least one row of every class.
        folds: Folds of the frame.
    """
    classes = tuple(map(str, workload.classes))
    if workload.task != "classification" or not classes:
        return None

    def names_without_rows(rows: pd.DataFrame) -> list[str]:
        present_positions = _present_positions(rows, workload.target_column, len(classes))
        if present_positions is None:
            return []
        return [name for position, name in enumerate(classes) if position not in present_positions]

    for fold in folds:
        missing_names = names_without_rows(frame.iloc[fold.train.start : fold.train.stop])
        if missing_names:
            return _missing_in_split_finding(
                f"Fold {fold.fold_id} has no train row of {_name_classes(missing_names)}. A "
                "network cannot learn a class without examples.",
                numbers={
                    "fold": fold.fold_id,
                    "classes": len(classes),
                    "missing": len(missing_names),
                },
            )
    test_rows = pd.concat([frame.iloc[fold.test.start : fold.test.stop] for fold in folds])
    missing_names = names_without_rows(test_rows)
    if not missing_names:
        return None
    return _missing_in_split_finding(
        f"No test row belongs to {_name_classes(missing_names)}. The promotion gate cannot measure "
        "how well a model predicts a class without test rows.",
        numbers={"classes": len(classes), "missing": len(missing_names)},
    )


def _missing_in_split_finding(summary: str, *, numbers: dict[str, int]) -> CheckOutcome:
    return CheckOutcome(
        outcome="warn",
        summary=summary,
        numbers=numbers,
        fault="too few rows",
        cause="The class is rare, or the rows are sorted by class.",
        fix="Provide more examples of the class, or plan larger train and test splits. If the rows "
        "are independent, order them with in_hash_order.",
    )


def _name_classes(names: list[str]) -> str:
    """Return "class 'a'" or "the classes 'a', 'b' and 3 more"."""
    if len(names) == 1:
        return f"class {names[0]!r}"
    names_text = ", ".join(map(repr, names[:_MAX_NAMES]))
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"the classes {names_text}{more}"


def _present_positions(frame: pd.DataFrame, column: str, num_classes: int) -> set[int] | None:
    """Return the positions of the classes that occur; None if the column has other values."""
    if column not in frame.columns or not pd.api.types.is_numeric_dtype(frame[column].dtype):
        return None
    values = np.unique(frame[column].dropna().to_numpy(np.float64))
    is_position = (values == values.round()) & (values >= 0) & (values < num_classes)
    return {int(value) for value in values} if is_position.all() else None


def _describe_folders(workload: Workload, missing_names: list[str]) -> str:
    """Return a sentence about the folder of each class; "" for a workload without image folders."""
    if not isinstance(workload, ImageFolderWorkload):
        return ""
    folders = [workload.folder / name for name in missing_names[:_MAX_NAMES]]
    return "".join(
        f" The folder {folder} has no image."
        if folder.is_dir()
        else f" The folder {folder} does not exist."
        for folder in folders
    )
