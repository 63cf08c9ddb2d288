"""Row source of images in a folder: decoding, resizing and errors."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from sluice.base.errors import ContractError, SourceError
from sluice.data.rows import ImageFolderRows

PATHS = ["cat/0.png", "dog/1.png", "cat/2.png"]


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (3, 6, 8, 3), dtype=np.uint8)


@pytest.fixture
def folder(pixels, tmp_path):
    for path, image in zip(PATHS, pixels, strict=True):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / path)
    return tmp_path


def test_pixels_equal_the_saved_ones(folder, pixels, assert_source):
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2)

    assert_source(ImageFolderRows(folder, PATHS), lambda rows: x[rows])
    assert_source(ImageFolderRows(folder, PATHS, as_float=True), lambda rows: x[rows].float() / 255)


def test_grayscale_images_have_one_channel(folder, pixels, assert_source):
    grayscale = [np.asarray(Image.fromarray(image).convert("L")) for image in pixels]
    x = torch.from_numpy(np.stack(grayscale))[:, None]

    assert_source(ImageFolderRows(folder, PATHS, mode="L"), lambda rows: x[rows])


def test_images_of_another_size_need_a_size_setting(folder):
    wide = np.zeros((10, 40, 3), np.uint8)
    wide[:, 15:25] = 255  # the center, which a crop keeps
    Image.fromarray(wide).save(folder / "wide.png")
    paths = [*PATHS, "wide.png"]

    with pytest.raises(ContractError, match=r"wide.png must have 6 x 8 pixels .*, got 10 x 40\."):
        ImageFolderRows(folder, paths)[torch.tensor([0, 3])]
    cropped = ImageFolderRows(folder, paths, size=10)[torch.tensor([3, 0])]
    stretched = ImageFolderRows(folder, paths, size=(10, 20), resize="stretch")[torch.tensor([3])]

    assert cropped.shape == (2, 3, 10, 10)
    assert cropped[0].min() == 255
    assert stretched.shape == (1, 3, 10, 20)
    assert (int(stretched[0, 0, 0, 0]), int(stretched[0, 0, 0, 10])) == (0, 255)


def test_default_size_is_that_of_the_first_image(folder):
    Image.new("RGB", (3, 5)).save(folder / "a.png")

    assert ImageFolderRows(folder, ["a.png"])[torch.tensor([0])].shape == (1, 3, 5, 3)


def test_missing_first_image_and_empty_paths_are_rejected(folder):
    with pytest.raises(SourceError, match=r"There is no image .*nothing.png"):
        ImageFolderRows(folder, ["nothing.png"])
    with pytest.raises(ContractError, match="needs at least one path"):
        ImageFolderRows(folder, [])


def test_broken_image_is_reported(folder):
    content = (folder / PATHS[1]).read_bytes()
    source = ImageFolderRows(folder, PATHS)
    for broken in (b"", b"no image", content[:-30], content[:40] + b"\0" * 60 + content[100:]):
        (folder / PATHS[1]).write_bytes(broken)

        assert source[torch.tensor([0, 2])].shape == (2, 3, 6, 8)
        with pytest.raises(SourceError, match=r"dog/1.png cannot be decoded as an image: \S+"):
            source[torch.tensor([0, 1])]


def test_image_removed_between_batches_is_reported(folder):
    source = pickle.loads(pickle.dumps(ImageFolderRows(folder, PATHS)))
    source[torch.tensor([0, 1])]
    (folder / PATHS[1]).unlink()

    with pytest.raises(SourceError, match=r"There is no image .*dog/1.png.*removed or renamed"):
        source[torch.tensor([0, 1])]


def test_image_with_16_bits_per_channel_is_rejected(folder):
    Image.fromarray(np.full((6, 8), 40_000, np.uint16)).save(folder / "deep.png")

    with pytest.raises(ContractError, match=r"deep.png must have 8 bits per channel, got .*I;16"):
        ImageFolderRows(folder, ["deep.png"], mode="L")


def test_alpha_channel_is_dropped(folder, pixels):
    rgba = np.dstack([pixels[0], np.zeros((6, 8), np.uint8)])
    Image.fromarray(rgba).save(folder / "clear.png")

    images = ImageFolderRows(folder, ["clear.png"])[torch.tensor([0])]

    assert torch.equal(images[0], torch.from_numpy(pixels[0]).permute(2, 0, 1))


def test_exif_orientation_is_applied(folder):
    image = Image.new("RGB", (40, 20))
    exif = image.getexif()
    exif[0x0112] = 6  # rotate by 90 degrees
    image.save(folder / "photo.jpg", exif=exif)

    assert ImageFolderRows(folder, ["photo.jpg"])[torch.tensor([0])].shape == (1, 3, 40, 20)


@pytest.mark.parametrize(
    "settings", [{"size": 0}, {"size": (3,)}, {"mode": "CMYK"}, {"resize": "x"}]
)
def test_invalid_setting_is_rejected(folder, settings):
    with pytest.raises(ContractError):
        ImageFolderRows(folder, PATHS, **settings)
