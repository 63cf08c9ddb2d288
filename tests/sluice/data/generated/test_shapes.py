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
def test_images_are_in_the_folders_of_their_classes_with_the_stated_noise(tmp_path):
    write_shapes(tmp_path / "a", 800, seed=0, side=16)
    write_shapes(tmp_path / "b", 800, seed=0, side=16)

    paths = sorted((tmp_path / "a").rglob("*.png"))
    assert len(paths) == 800
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == list(SHAPES)
    # Image n shows shape n modulo 4.
    wrong = [path.parent.name != SHAPES[int(path.stem) % 4] for path in paths]
    assert np.mean(wrong) == pytest.approx(lowest_error_rate(), abs=0.02)
    assert lowest_error_rate() < LABEL_NOISE
    with Image.open(paths[0]) as image:
        assert (image.size, image.mode) == ((16, 16), "RGB")
    for path in paths[::100]:
        same = tmp_path / "b" / path.relative_to(tmp_path / "a")
        assert path.read_bytes() == same.read_bytes()


@pytest.mark.parametrize(
    ("shape", "share"), [("circle", 0.8 * np.pi), ("square", 1.5**2), ("triangle", 0.5 * 1.6**2)]
)
def test_a_shape_has_its_area(shape, share):
    """The areas are those of a shape with a radius of 1, without a corner that is cut off."""
    areas = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        radius = np.random.default_rng(seed).uniform(0.22, 0.36) * 64
        pixels = draw_shape(rng, shape, side=64).astype(float).mean(axis=2)
        areas.append((pixels > 125).sum() / radius**2)

    assert np.median(areas) == pytest.approx(share, rel=0.15)


def test_a_folder_is_generated_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    calls = []

    def write(folder):
        calls.append(folder)
        folder.mkdir()
        (folder / "file").write_text(str(len(calls)))

    first = generate_once("name", write)

    assert generate_once("name", write) == first == tmp_path / "generated" / "name"
    assert (len(calls), (first / "file").read_text()) == (1, "1")
    assert [p.name for p in first.parent.iterdir()] == ["name"]


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))

    def write(folder):
        folder.mkdir()
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError):
        generate_once("name", write)
    assert list((tmp_path / "generated").iterdir()) == []


def _generate(home: str) -> str:
    import os

    os.environ["SLUICE_HOME"] = home

    def write(folder):
        folder.mkdir()
        (folder / "process").write_text(str(os.getpid()))

    return (generate_once("name", write) / "process").read_text()


def test_processes_that_generate_at_the_same_time_use_one_folder(tmp_path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.map(_generate, [str(tmp_path)] * 8)

    assert len(set(found)) == 1
