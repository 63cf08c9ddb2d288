"""Run records: settings, data, code and command of a stage, written before the stage starts."""

import inspect
from collections.abc import Sequence
from pathlib import Path

from sluice.assets.resources import utc_now
from sluice.base.artifacts import ArtifactStore
from sluice.base.files import write_atomic
from sluice.base.home import Home
from sluice.config.resolved import SearchInputs, TrainingInputs
from sluice.training.code import identify_code
from sluice.training.run_record import read_run


def write_run(
    inputs: TrainingInputs,
    search_inputs: SearchInputs,
    home: Home,
    run_id: str,
    stage: str,
    *,
    seeds: Sequence[int],
    data: str,
) -> Path:
    """Write the record of one stage of one run; return the path of the file.

    Args:
        inputs: Workload, model and training settings at the start of the stage.
        search_inputs: Search and machines of the pipeline.
        home: State folder.
        run_id: Dagster's run id.
        stage: 'search' or 'training'.
        seeds: Seeds of the trainings.
        data: Digest of the feature frame.
    """
    search = search_inputs.search.model_dump(mode="json") if search_inputs.search else None
    seeds_and_machines = {
        "seeds": list(seeds),
        "compute": search_inputs.compute.model_dump(mode="json"),
    }
    run = read_run(
        inputs.config | seeds_and_machines | {"search": search},
        data=data,
        code=identify_code(inputs.workload, inputs.model),
        source=Path(inspect.getfile(type(inputs.workload))).parent,
        store=ArtifactStore(home.artifacts),
        now=utc_now(),
    )
    path = home.run_records / f"{run_id}-{stage}.json"
    write_atomic(path, run.model_dump_json(indent=1).encode())
    return path
