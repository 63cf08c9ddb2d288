"""A workload that counts its instances by the module whose code creates them."""

import sys
from collections import Counter
from pathlib import Path
from typing import ClassVar

from sluice.workloads.workload import WorkloadSettings
from tests.support.echo import Echo

_SKIPPED_MODULES = ("load", "counted")
"""Names of modules whose code creates instances only for another module."""


class BuildCounter(Echo):
    builds_by_module: ClassVar[Counter[str]] = Counter()

    def __init__(self, settings: WorkloadSettings | None = None) -> None:
        super().__init__(settings)
        frame = sys._getframe()
        while Path(frame.f_code.co_filename).stem in _SKIPPED_MODULES:
            assert frame.f_back is not None
            frame = frame.f_back
        self.builds_by_module[Path(frame.f_code.co_filename).stem] += 1
