"""Images of a folder with one subfolder per class."""

from pathlib import Path

import pytest

from sluice.base.errors import ContractError, SettingsError
from sluice.failfast.data.served_inputs import check_served_inputs
from sluice.scaffold.project import write_files
from sluice.scaffold.samples import make_sample
from sluice.workloads.labelled_images import LabelledImagesSettings, LabelledImagesWorkload


class Stripes(LabelledImagesWorkload):
    classes = ("horizontal", "vertical")


class Horizontal(LabelledImagesWorkload):
    classes = ("horizontal", "diagonal")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> LabelledImagesSettings:
    folder: Path = tmp_path_factory.mktemp("stripes")
    write_files(folder, make_sample("images").files)
    return LabelledImagesSettings(folder=str(folder / "images"), size=(8, 16))


def test_images_are_read_in_hash_order_with_their_classes(settings):
    workload = Stripes(settings)

    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    train = workload.examples(frame, fold.train)

    assert frame.index.is_monotonic_increasing
    assert frame["path"].tolist() != sorted(frame["path"])
    assert [workload.classes[n] for n in train.targets.tolist()] == [
        path.split("/")[0] for path in frame["path"].iloc[fold.train.start : fold.train.stop]
    ]
    assert train.take(range(3)).tensor.shape == (3, 3, 8, 16)
    assert workload.data_files == (settings.folder,)


def test_clients_send_image_files(settings):
    workload = Stripes(settings)
    raw = workload.load_rows()
    frame = workload.compute_features(raw)

    found = check_served_inputs(
        workload, required=True, raw=raw, frame=frame, folds=workload.plan_folds(frame)
    )

    assert (found.outcome, found.numbers["codec"]) == ("pass", "images")
    assert found.numbers["max_deviation"] == 0


def test_a_folder_that_is_no_class_is_refused(settings):
    workload = Horizontal(settings)

    with pytest.raises(ContractError, match="got 'vertical' for vertical/"):
        workload.compute_features(workload.load_rows())
    with pytest.raises(SettingsError, match="requires settings with a 'folder'"):
        Stripes()
