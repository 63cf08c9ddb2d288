"""All that ``sluice bench tune`` measures, as one record."""

from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.search.scale import ScaleCost
from sluice.bench.search.study_speed import StudySpeed
from sluice.bench.search.wrapper_cost import WrapperCost


class SearchSpeed(Record):
    """The speed of a search, of its wrapper around Ray Tune, and of its decisions at scale."""

    study: StudySpeed = Field(description="Real training on the default pipeline.")
    few_workers: WrapperCost = Field(description="Sleeping trials, one worker for each core.")
    many_workers: WrapperCost = Field(
        description="Sleeping trials, several workers for each core; Tune's loop has more to do."
    )
    scale: tuple[ScaleCost, ...] = Field(description="Decisions alone; workers are simulated.")
