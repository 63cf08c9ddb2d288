"""The record of all measurements of ``sluice bench tune``."""

from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.search.scale import ScaleCost
from sluice.bench.search.study_speed import StudySpeed
from sluice.bench.search.wrapper_cost import WrapperCost


class SearchSpeed(Record):
    """Speed of a search, overhead of the wrapper around Ray Tune, and decisions at scale."""

    study: StudySpeed = Field(description="A study with real training on the default pipeline.")
    few_workers: WrapperCost = Field(description="Sleeping trials, one worker per core.")
    many_workers: WrapperCost = Field(
        description="Sleeping trials, several workers per core, with more load on Tune's loop."
    )
    scale: tuple[ScaleCost, ...] = Field(description="Decisions only, with simulated workers.")
