"""Run records: settings, data, code and command of a stage, written before it starts."""

import inspect
from pathlib import Path

from sluice.assets.resources import utc_now
from sluice.base.artifacts import ArtifactStore
from sluice.base.files import write_atomic
from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.training.code import identify_code
from sluice.training.run_record import read_run


def write_run(
    pipeline: PipelineSettings, home: Home, run_id: str, stage: str, *, data: str
) -> Path:
    """Write the record of one stage of one run; return the path of the file.

    Args:
        pipeline: Pipeline with the settings of the stage.
        home: State folder.
        run_id: Dagster's run id.
        stage: 'search' or 'training'.
        data: Digest of the feature frame.
    """
    searched = pipeline.search.model_dump(mode="json") if pipeline.search else None
    used = {"seeds": list(pipeline.seeds), "compute": pipeline.compute.model_dump(mode="json")}
    workload = pipeline.loaded_workload
    run = read_run(
        pipeline.config | used | {"search": searched},
        data=data,
        code=identify_code(workload, pipeline.model),
        source=Path(inspect.getfile(type(workload))).parent,
        store=ArtifactStore(home.artifacts),
        now=utc_now(),
    )
    path = home.run_records / f"{run_id}-{stage}.json"
    write_atomic(path, run.model_dump_json(indent=1).encode())
    return path
