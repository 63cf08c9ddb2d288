"""Workloads with one defect each in the rows that they load."""

import numpy as np
import pandas as pd

from sluice.bench.poc.workloads import Cancer, Diabetes, Digits, Iris, ShortBars, Wine


class NanCell(Diabetes):
    """One measurement is missing."""

    def load_rows(self) -> pd.DataFrame:
        """Return the rows with a missing value."""
        rows = super().load_rows()
        rows.loc[17, "bmi"] = np.nan
        return rows


class InfCell(Cancer):
    """One measurement was divided by zero."""

    def load_rows(self) -> pd.DataFrame:
        """Return the rows with an infinite value."""
        rows = super().load_rows()
        rows.loc[3, "worst_area"] = np.inf
        return rows


class RenamedColumn(Diabetes):
    """The source has renamed a column."""

    def load_rows(self) -> pd.DataFrame:
        """Return the rows with the new name."""
        return super().load_rows().rename(columns={"progression": "progresion"})


class MissingIndex(ShortBars):
    """``reset_index`` was called: the dates are a column."""

    def load_rows(self) -> pd.DataFrame:
        """Return the bars without dates as index."""
        return super().load_rows().reset_index()


class WrongDtype(Wine):
    """A decimal comma turned a column into text."""

    def load_rows(self) -> pd.DataFrame:
        """Return the rows with a column of text."""
        rows = super().load_rows()
        return rows.assign(hue=rows["hue"].map("{:.2f}".format).str.replace(".", ","))


class UnsortedTime(ShortBars):
    """Two yearly files were joined in the wrong order."""

    def load_rows(self) -> pd.DataFrame:
        """Return the second half of the bars before the first half."""
        rows = super().load_rows()
        half = len(rows) // 2
        return pd.concat([rows.iloc[half:], rows.iloc[:half]])


class RepeatedTime(ShortBars):
    """A corrected bar was added without removing the original one."""

    def load_rows(self) -> pd.DataFrame:
        """Return the bars with one date twice."""
        rows = super().load_rows()
        duplicate = rows.iloc[[40]] * 1.001
        return pd.concat([rows.iloc[:41], duplicate, rows.iloc[41:]])


class DuplicateRows(Cancer):
    """Two exports overlap."""

    def load_rows(self) -> pd.DataFrame:
        """Return the rows, the first 60 of them twice."""
        rows = super().load_rows()
        return pd.concat([rows, rows.head(60)], ignore_index=True)


class TooFewRows(Iris):
    """A filter left 40 rows."""

    def load_rows(self) -> pd.DataFrame:
        """Return the first rows."""
        return super().load_rows().head(40)


class ConstantTarget(Wine):
    """The label was joined from an empty table and filled with 0."""

    def load_rows(self) -> pd.DataFrame:
        """Return the rows with one class only."""
        return super().load_rows().assign(grower=0)


class ShuffledLabels(Digits):
    """Images were sorted, labels were not."""

    def load_rows(self) -> pd.DataFrame:
        """Return the images with the labels of other images."""
        rows = super().load_rows()
        labels = rows["digit"].sample(frac=1, random_state=1).to_numpy()
        return rows.assign(digit=labels)


class ShuffledTargets(Diabetes):
    """Targets were joined by position to rows in another order."""

    def load_rows(self) -> pd.DataFrame:
        """Return the patients with the progression of other patients."""
        rows = super().load_rows()
        shuffled_targets = rows["progression"].sample(frac=1, random_state=1).to_numpy()
        return rows.assign(progression=shuffled_targets)


class UnitChanges(Diabetes):
    """The unit of one column changes after the training rows."""

    def load_rows(self) -> pd.DataFrame:
        """Return the rows with blood pressure in millipascals towards the end."""
        rows = super().load_rows()
        rows.loc[285:, "bp"] *= 133_322.0
        return rows
