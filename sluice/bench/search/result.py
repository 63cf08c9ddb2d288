"""The record of all measurements of ``sluice bench tune``."""

from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.search.scale import ScaleCost
from sluice.bench.search.study_speed import StudySpeed
from sluice.bench.search.wrapper_cost import WrapperCost


class SearchSpeed(Record):
    """Speed of a study, overhead of the wrapper around Ray Tune, and cost of many decisions."""

    study: StudySpeed = Field(description="A study with real training on the default pipeline.")
    few_workers: WrapperCost = Field(description="Trials that only sleep, on two workers.")
    many_workers: WrapperCost = Field(
        description="Trials that only sleep, on eight workers (two if quick). More workers "
        "load Tune's event loop more."
    )
    scale: tuple[ScaleCost, ...] = Field(
        description="Decisions about many trials, with simulated workers."
    )
