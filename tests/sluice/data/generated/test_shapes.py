"""Generated images of shapes, and the folder into which they are generated once."""

import multiprocessing

import numpy as np
import pytest
from PIL import Image

from sluice.base.errors import StorageError
from sluice.data.generated.folder import generate_once
from sluice.data.generated.shapes import (
    LABEL_NOISE,
    SHAPES,
    draw_shape,
    lowest_error_rate,
    write_shapes,
)


@pytest.mark.slow
def test_images_are_reproducible_and_sorted_by_class_with_label_noise(tmp_path):
    write_shapes(tmp_path / "a", 800, seed=0, side=16)
    write_shapes(tmp_path / "b", 800, seed=0, side=16)

    paths = sorted((tmp_path / "a").rglob("*.png"))
    assert len(paths) == 800
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == list(SHAPES)
    # Without label noise, image n would be of the class n modulo 4.
    is_mislabelled = [path.parent.name != SHAPES[int(path.stem) % 4] for path in paths]
    assert np.mean(is_mislabelled) == pytest.approx(lowest_error_rate(), abs=0.02)
    assert lowest_error_rate() < LABEL_NOISE
    with Image.open(paths[0]) as image:
        assert (image.size, image.mode) == ((16, 16), "RGB")
    for path in paths[::100]:
        same_seed_path = tmp_path / "b" / path.relative_to(tmp_path / "a")
        assert path.read_bytes() == same_seed_path.read_bytes()


@pytest.mark.parametrize(
    ("shape", "expected"), [("circle", 0.8 * np.pi), ("square", 1.5**2), ("triangle", 0.5 * 1.6**2)]
)
def test_drawn_shape_has_the_expected_area(shape, expected):
    """The expected areas are those of uncropped shapes with a radius of 1."""
    areas = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        radius = np.random.default_rng(seed).uniform(0.22, 0.36) * 64
        pixels = draw_shape(rng, shape, side=64).astype(float).mean(axis=2)
        areas.append((pixels > 125).sum() / radius**2)

    assert np.median(areas) == pytest.approx(expected, rel=0.15)


def test_folder_is_generated_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    calls = []

    def write_folder(folder):
        calls.append(folder)
        folder.mkdir()
        (folder / "file").write_text(str(len(calls)))

    first = generate_once("name", write_folder)

    assert generate_once("name", write_folder) == first == tmp_path / "generated" / "name"
    assert (len(calls), (first / "file").read_text()) == (1, "1")
    assert [p.name for p in first.parent.iterdir()] == ["name"]


def test_failed_generation_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))

    def write_folder(folder):
        folder.mkdir()
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError):
        generate_once("name", write_folder)
    assert list((tmp_path / "generated").iterdir()) == []


def _generate_in_process(home: str) -> str:
    import os

    os.environ["SLUICE_HOME"] = home

    def write_folder(folder):
        folder.mkdir()
        (folder / "process").write_text(str(os.getpid()))

    return (generate_once("name", write_folder) / "process").read_text()


def test_processes_that_generate_at_the_same_time_use_one_folder(tmp_path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        process_ids = pool.map(_generate_in_process, [str(tmp_path)] * 8)

    assert len(set(process_ids)) == 1
