"""HTML page of a window of embeddings: the test, and a plot of both samples.

Shape legend: N = rows, E = width of an embedding.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.base.digests import short
from sluice.drift.embedding_drift import EmbeddingReport
from sluice.drift.embedding_plot import embeddings_png
from sluice.drift.monitor_page import quantity_page


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbeddingWindow:
    """A window of embeddings, the embeddings of its reference, and the result of their test."""

    report: EmbeddingReport
    reference_NE: NDArray[np.float32]
    window_NE: NDArray[np.float64]

    @property
    def numbers(self) -> dict[str, str]:
        """Formatted results by name, as plain text."""
        report = self.report
        return {
            "squared maximum mean discrepancy": _format(report.mmd_squared, ".3g"),
            f"threshold (exceeded in {100 * report.alpha:.3g} % of windows without drift)": _format(
                report.threshold, ".3g"
            ),
            "discrepancy ignored up to": f"{report.min_discrepancy:g}",
            f"p-value of {report.num_permutations:,} permutations": _format(report.p_value, ".2g"),
            "bandwidth of the kernel (median distance)": _format(report.bandwidth, ".3g"),
            "block length": f"{report.block_length}",
            "rows of reference and window": f"{report.reference_rows:,} and {report.num_rows:,}",
            "layer that receives the embedding": report.layer,
            "network": short(report.network),
        }

    def plot(self) -> bytes:
        """Return a PNG of both samples."""
        has_drifted = self.report.verdict == "DRIFT"
        return embeddings_png(
            self.reference_NE.astype(np.float64), self.window_NE, has_drifted=has_drifted
        )


def _format(value: float, spec: str) -> str:
    return "not computed" if math.isnan(value) else format(value, spec)


def embedding_page(title: str, window: EmbeddingWindow) -> str:
    """Return the page that compares the embeddings of a window with the reference.

    Args:
        title: Title in plain text.
        window: The window.
    """
    report = window.report
    text = (report.verdict, report.reason, report.remedy)
    return quantity_page(title, *text, window.numbers, window.plot())
