"""Workload on a folder of images: rows, errors, augmentation, training and requests."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sluice.base.digests import digest_frame
from sluice.base.errors import ContractError, SettingsError, SourceError
from sluice.data.folds import FoldSettings, RowRange, rows_needed
from sluice.failfast.data.served_inputs import check_served_inputs
from sluice.models.settings import ModelSettings
from sluice.training.code import identify_code
from sluice.training.loop import train
from sluice.training.settings import TrainSettings
from sluice.workloads.image_folder import ImageFolderSettings, ImageFolderWorkload
from sluice.workloads.prepare_model import prepare_model


class Pets(ImageFolderWorkload):
    classes = ("cat", "dog")


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(6):
            write_image(tmp_path / label / f"{number}.png", rng.integers(0, 256, (8, 6, 3)))
    return tmp_path


def write_image(path, pixels):
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path)


def make_workload(folder, **settings) -> Pets:
    return Pets(ImageFolderSettings(folder=str(folder), **settings))


def test_each_image_is_a_row_with_its_class_and_brightness(folder):
    workload = make_workload(folder)
    frame = workload.compute_features(workload.load_rows())
    examples = workload.examples(frame, RowRange(start=2, stop=7))

    assert frame.index.is_monotonic_increasing
    assert frame.index.is_unique
    assert examples.tensor.shape == (5, 3, 8, 6)
    for pixels, y, (_, row) in zip(
        examples.tensor, examples.targets, frame.iloc[2:7].iterrows(), strict=True
    ):
        with Image.open(folder / row["path"]) as image:
            assert np.array_equal(pixels, np.asarray(image).transpose(2, 0, 1))
        assert row["path"].startswith(workload.classes[y])
        assert row["brightness"] == pytest.approx(float(pixels.float().mean()) / 255)


def test_digest_of_rows_depends_on_pixels(folder):
    before = digest_frame(make_workload(folder).load_rows())
    assert digest_frame(make_workload(folder).load_rows()) == before
    write_image(folder / "cat" / "0.png", np.full((8, 6, 3), 7))

    assert digest_frame(make_workload(folder).load_rows()) != before


def test_size_and_mode_are_configurable(folder):
    workload = make_workload(folder, size=4, mode="L")
    frame = workload.compute_features(workload.load_rows())
    x = workload.examples(frame, RowRange(start=0, stop=3)).tensor

    assert x.shape == (3, 1, 4, 4)
    settings = ModelSettings(architecture="sluice.models.image_cnn:ImageCnn", hidden=2)
    assert workload.build_model(4, 2, settings)(x).shape == (3, 2)


def test_duplicate_images_and_unknown_classes_are_reported(folder):
    (folder / "dog" / "copy.png").write_bytes((folder / "cat" / "3.png").read_bytes())
    with pytest.raises(
        ContractError, match=r"(cat/3|dog/copy)\.png and (cat/3|dog/copy)\.png have"
    ):
        make_workload(folder).load_rows()
    (folder / "dog" / "copy.png").unlink()
    (folder / "bird").mkdir()
    write_image(folder / "bird" / "0.png", np.zeros((8, 6, 3)))
    workload = make_workload(folder)
    with pytest.raises(ContractError, match=r"must be cat, dog; unknown: bird\."):
        workload.compute_features(workload.load_rows())


def test_renamed_class_folder_error_suggests_the_class(folder):
    (folder / "dog").rename(folder / "Dogs")
    workload = make_workload(folder)

    with pytest.raises(
        ContractError,
        match=r"must be cat, dog; unknown: Dogs \(did you mean 'dog'\?\); missing: dog\.",
    ):
        workload.compute_features(workload.load_rows())


def test_broken_image_is_reported_or_skipped(folder):
    (folder / "cat" / "2.png").write_bytes((folder / "cat" / "2.png").read_bytes()[:60])

    with pytest.raises(SourceError, match=r"2\.png") as caught:
        make_workload(folder).load_rows()
    assert "set workload_settings: {skip_broken: true}" in caught.value.fix
    with pytest.warns(UserWarning, match="Skipped 1 of 12 images"):
        assert len(make_workload(folder, skip_broken=True).load_rows()) == 11


def test_relative_folder_is_next_to_the_module_and_not_in_the_code_digest():
    workload = make_workload("photos")

    assert workload.folder == Path(__file__).parent / "photos"
    # The code digest must not depend on training images, which a server does not have.
    assert identify_code(workload).data_files == {}


def test_raw_expectations_require_the_rows_of_all_folds(folder):
    folds = FoldSettings(num_folds=2, first_test_share=0.5, embargo_rows=0)
    expected = make_workload(folder, folds=folds).raw_expectations

    assert expected[0].kind == "row_count"
    assert expected[0].low == rows_needed(folds, horizon_rows=0, min_train_rows=16)
    assert {e.column for e in expected if e.kind == "not_null"} == set(Pets.raw_schema.names)


def test_missing_or_empty_folder_is_rejected(tmp_path):
    with pytest.raises(SettingsError, match="needs a folder of images"):
        Pets(ImageFolderSettings()).load_rows()
    with pytest.raises(SourceError, match="must contain images, but contains none"):
        make_workload(tmp_path).load_rows()


def test_flips_of_shapes_depend_only_on_the_seed_of_the_image():
    from sluice.workloads.shapes import ShapesWorkload

    workload = ShapesWorkload()
    x = torch.arange(64 * 3 * 4, dtype=torch.uint8).reshape(64, 1, 3, 4)
    y, seeds = torch.zeros(64), torch.arange(64) * 7919

    together, _ = workload.augment(x.clone(), y, seeds)

    alone = torch.cat(
        [workload.augment(x[n : n + 1], y[:1], seeds[n : n + 1])[0] for n in range(64)]
    )
    assert torch.equal(together, alone)
    variants = [x, x.flip(3), x.flip(2), x.flip(2).flip(3)]
    kinds = [
        [torch.equal(one, v[n]) for v in variants].index(True) for n, one in enumerate(together)
    ]
    assert min(np.bincount(kinds, minlength=4)) >= 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("scale_inputs", [False, True])
def test_training_is_bitwise_equal_with_and_without_loader_workers(folder, scale_inputs):
    workload = make_workload(folder)
    workload.scale_inputs = scale_inputs
    frame = workload.compute_features(workload.load_rows())
    train_rows = workload.examples(frame, RowRange(start=0, stop=8))
    val_rows = workload.examples(frame, RowRange(start=8, stop=12))
    model = ModelSettings(architecture="sluice.models.image_cnn:ImageCnn", hidden=2)

    def train_weights(workers: int) -> dict[str, torch.Tensor]:
        network = prepare_model(workload, model, train_rows, seed=0)
        settings = TrainSettings(max_epochs=2, batch_rows=3, loader_workers=workers)
        for _ in train(
            network, workload.loss, workload.losses, train_rows, val_rows, settings, seed=0
        ):
            pass
        return network.state_dict()

    in_process, in_workers = train_weights(0), train_weights(4)
    assert in_process["x_std"].eq(1).all() != scale_inputs
    assert all(torch.equal(in_process[name], in_workers[name]) for name in in_process)


@pytest.mark.parametrize(("size", "shape"), [(4, (4, 4)), ([4, 6], (4, 6))])
def test_codec_decodes_request_images_as_in_training(folder, size, shape):
    settings = FoldSettings(num_folds=1, first_test_share=0.5, embargo_rows=0)
    workload = make_workload(folder, size=size, folds=settings)
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    folds = workload.plan_folds(frame)

    result = check_served_inputs(workload, required=True, raw=raw, frame=frame, folds=folds)

    request = workload.codec().parse(workload.request_of(raw, frame, np.array([3])))
    x = workload.codec().decode_request(request)
    assert (result.outcome, result.numbers["codec"]) == ("pass", "images")
    assert (result.numbers["max_deviation"], x.shape) == (0, (1, 3, *shape))
    assert workload.codec().watched_values(request, x) == (
        pytest.approx(frame["brightness"].iloc[3]),
    )
    with pytest.raises(ContractError, match="needs the setting 'size'"):
        check_served_inputs(make_workload(folder), required=True, raw=raw, frame=frame, folds=folds)
