"""Listing of image folders as tables, and detection of broken images."""

import time

import numpy as np
import pytest
from PIL import Image

from sluice.base.errors import ContractError, SourceError
from sluice.data.rows import image_folder_table, verify_images


@pytest.fixture
def folder(tmp_path):
    for name in ("dog/2.JPG", "cat/b.png", "cat/deep/a.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (200, 10, 10)).save(tmp_path / name)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / ".hidden.png").write_text("no image")
    return tmp_path


def test_images_are_listed_by_path_with_their_folder_as_label(folder):
    table = image_folder_table(folder, sizes=True)

    assert table.to_dict("list") == {
        "path": ["cat/b.png", "cat/deep/a.png", "dog/2.JPG"],
        "label": ["cat", "cat", "dog"],
        "height": [6, 6, 6],
        "width": [8, 8, 8],
    }


def test_images_of_a_flat_folder_have_empty_labels(folder):
    assert image_folder_table(folder / "dog")["label"].tolist() == [""]


def test_image_next_to_class_folders_is_rejected(folder):
    Image.new("L", (2, 2)).save(folder / "stray.png")

    with pytest.raises(ContractError, match=r"has stray.png beside these folders"):
        image_folder_table(folder)


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_folder_without_images_is_rejected(tmp_path, name):
    (tmp_path / "empty" / "class").mkdir(parents=True)
    (tmp_path / "empty" / "class" / "x.csv").write_text("1")

    with pytest.raises(SourceError, match=r"must contain images, but .*none|cannot be listed"):
        image_folder_table(tmp_path / name)


def test_broken_header_is_reported_if_sizes_are_read(folder):
    (folder / "cat" / "b.png").write_bytes(b"broken")

    assert len(image_folder_table(folder)) == 3
    with pytest.raises(SourceError, match=r"cat/b.png cannot be read as an image"):
        image_folder_table(folder, sizes=True)


def test_broken_images_are_skipped_only_with_skip_broken(tmp_path):
    (tmp_path / "a").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a" / "0000.png")
    content = (tmp_path / "a" / "0000.png").read_bytes()
    for number in range(1, 1_000):
        (tmp_path / "a" / f"{number:04}.png").write_bytes(content)
    for number in (300, 301, 999):  # truncated after a valid header
        (tmp_path / "a" / f"{number:04}.png").write_bytes(content[:200])
    calls = []

    paths = image_folder_table(tmp_path)["path"].tolist()
    broken = verify_images(
        tmp_path, paths, workers=3, on_progress=lambda done, total: calls.append((done, total))
    )
    with pytest.warns(UserWarning, match=r"Skipped 3 of 1,000 images .*The first: a/0300.png"):
        table = image_folder_table(tmp_path, skip_broken=True)

    assert len(paths) == 1_000
    assert [image.path for image in broken] == ["a/0300.png", "a/0301.png", "a/0999.png"]
    assert "truncated" in broken[0].reason
    assert calls == [(256, 1000), (512, 1000), (768, 1000), (1000, 1000)]
    assert (len(table), table.attrs["num_broken"]) == (997, 3)
    assert table.index.tolist() == list(range(997))


def test_skip_broken_does_not_warn_without_broken_images(folder):
    assert image_folder_table(folder, skip_broken=True).attrs["num_broken"] == 0


def test_folder_with_only_broken_images_is_rejected(tmp_path):
    (tmp_path / "a.png").write_bytes(b"broken")

    with pytest.raises(
        SourceError, match=r"No image of .* can be decoded \(1 image\). The first: a.png"
    ):
        image_folder_table(tmp_path, skip_broken=True)


@pytest.mark.slow
def test_20_000_files_are_listed(tmp_path, record_property):
    for label in range(20):
        (tmp_path / f"{label}").mkdir()
        for number in range(1_000):
            (tmp_path / f"{label}" / f"{number}.png").touch()

    started = time.perf_counter()
    table = image_folder_table(tmp_path)
    record_property("measurement", f"20,000 files listed in {time.perf_counter() - started:.2f} s")

    assert len(table) == 20_000
    assert table["path"].is_monotonic_increasing
    assert table["label"].value_counts().unique().tolist() == [1_000]
