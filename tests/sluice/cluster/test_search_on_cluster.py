"""Searches on a cluster of two machines that share only an S3 server."""

from pathlib import Path

import pytest
from pyarrow.fs import FileSelector, FileSystem

from sluice.cluster.settings import ComputeSettings
from sluice.tuning.tuner import run_tuner
from tests.sluice.cluster.conftest import KEYS
from tests.sluice.tuning.toy_space import decisions, search, settings
from tests.support.trials_on_nodes import Notes, Observed, count_running

pytestmark = pytest.mark.exhaustive
ROOT = Path(__file__).parents[3]
SETTINGS = settings(10, ordered=True)


@pytest.fixture(scope="module")
def code(tmp_path_factory) -> Path:
    """A folder with user modules that are not installed."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "lossy").mkdir()
    (folder / "lossy" / "__init__.py").write_text("SCALE = 7\n")
    (folder / "working").mkdir()
    (folder / "working" / "only_here.py").write_text("from lossy import SCALE\nVALUE = 5 * SCALE\n")
    return folder


@pytest.fixture
def compute(two_machines, s3, code) -> ComputeSettings:
    return ComputeSettings(
        address=two_machines.address,
        storage_path=s3.format("prefix"),
        runtime_env={
            "working_dir": str(code / "working"),
            "py_modules": [str(code / "lossy")],
            # Tests are not installed on the machines.
            "env_vars": {"PYTHONPATH": str(ROOT)} | {name: f"${{{name}}}" for name in KEYS},
        },
    )


@pytest.fixture
def notes(tmp_path) -> Notes:
    (tmp_path / "notes").mkdir()
    return Notes(folder=tmp_path / "notes")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The decisions of the study in one process, without Ray."""
    return decisions(search(tmp_path_factory.mktemp("expected") / "study", SETTINGS))


def search_on_cluster(
    folder, notes, compute, search_settings=SETTINGS, *, module="only_here", **options
):
    toy = Observed(notes=notes.folder, module=module)
    return search(folder, search_settings, toy=toy, compute=compute, run=run_tuner, **options)


def test_a_study_uses_only_the_storage_and_uploads_its_code(
    compute, two_machines, notes, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    notes.expect(*two_machines.ids())

    result = search_on_cluster(tmp_path / "undisturbed", notes, compute)

    assert decisions(result) == expected
    assert {trial.state for trial in result.trials} == {"finished", "pruned"}
    records = notes.read()
    assert {note["machine"] for note in records} == set(two_machines.ids())
    assert {note["value"] for note in records} == {35}
    assert {note["secret"] for note in records} == {KEYS["AWS_SECRET_ACCESS_KEY"]}
    assert {(note["threads"], note["hash_seed"]) for note in records} == {("1", "0")}
    folders = {Path(note["folder"]) for note in records}
    assert all((folder / "only_here.py").exists() for folder in folders), folders
    assert not list(tmp_path.glob("**/mark"))
    filesystem, path = FileSystem.from_uri(compute.storage_path)
    stored = filesystem.get_file_info(FileSelector(f"{path}/undisturbed", recursive=True))
    assert any(file.base_name == "mark" for file in stored)
    assert any(file.base_name == "result.json" for file in stored)


def test_a_study_continues_after_the_loss_of_a_machine_and_uses_a_new_one(
    compute, two_machines, notes, expected, tmp_path
):
    head, second = two_machines.ids()
    notes.expect(head, second)
    lost, joined = {}, []

    def on_report(trial, _trials):
        rate = trial.schedule[0].params["training.learning_rate"]
        machine = [note["machine"] for note in notes.read() if note["rate"] == rate][-1]
        if not lost and machine == second and trial.state == "running":
            two_machines.lose(gracefully=False)
            lost[rate] = len(trial.epochs)
        elif lost and not joined:
            two_machines.complete()
            joined.append(two_machines.ids()[1])
            notes.expect(*joined)

    # Machines of this test share Ray's folder of uploaded code, and a new machine empties it.
    env = compute.runtime_env.model_copy(update={"working_dir": None, "py_modules": ()})
    compute = compute.model_copy(update={"runtime_env": env})
    result = search_on_cluster(
        tmp_path / "disturbed", notes, compute, on_report=on_report, module=""
    )

    assert decisions(result) == expected
    (rate, epochs), *_ = lost.items()
    resumed = [note for note in notes.read() if note["rate"] == rate and note["done"]]
    assert resumed, "The trial did not resume from a checkpoint."
    assert resumed[0]["done"] >= epochs
    assert resumed[0]["machine"] != second
    assert joined[0] in notes.machines(), "The machine that joined ran nothing."
    assert not list(tmp_path.glob("**/mark"))


@pytest.mark.parametrize("ordered", [True, False])
def test_the_limit_of_workers_limits_concurrent_trials(compute, notes, expected, tmp_path, ordered):
    search_settings = SETTINGS.model_copy(update={"ordered": ordered})
    limited = compute.model_copy(update={"workers": 2, "cpus_per_worker": 0.25})
    running, received = count_running(), []

    result = search_on_cluster(
        tmp_path / "limited",
        notes,
        limited,
        search_settings,
        callbacks=[running],
        log=received.append,
    )

    assert running.max_running == 2
    assert len(result.trials) == 10
    if ordered:
        assert decisions(result) == expected
    message = "2 trials can run at a time (compute.workers), but 8 fit on the 2 machines"
    assert [line for line in received if message in line]


def test_a_local_trial_has_one_thread_and_the_working_folder_of_the_search(
    notes, expected, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    running = count_running()

    result = search(
        tmp_path / "local",
        SETTINGS,
        toy=Observed(notes=notes.folder),
        compute=ComputeSettings(workers=1),
        run=run_tuner,
        callbacks=[running],
    )

    assert decisions(result) == expected
    assert running.max_running == 1
    records = notes.read()
    assert {(note["threads"], note["hash_seed"]) for note in records} == {("1", "0")}
    assert {note["folder"] for note in records} == {str(tmp_path)}
