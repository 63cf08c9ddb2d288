"""What a run says to do next."""

import pytest

from sluice.pipelines.run import RunReport
from sluice.pipelines.summary import next_commands


@pytest.mark.parametrize(
    ("standing", "command"),
    [
        ({"production": 2}, "serve my/demand.yaml"),
        ({"production": 1, "rolls_out": True}, "rollout watch demand"),
        ({"production": 1, "waits": "No server answers."}, "serve my/demand.yaml"),
        ({"production": None}, None),
    ],
)
def test_it_names_commands_that_work_for_this_pipeline(
    standing: dict[str, object], command: str | None
) -> None:
    report = RunReport.model_construct(pipeline="demand", version=2, **standing)

    commands = [given for given, _ in next_commands(report, "my/demand.yaml")]

    middle = [] if command is None else [command]
    assert commands == ["registry show demand", *middle, "dev my/demand.yaml"]
