"""Location of the folder with all state, ``SLUICE_HOME``."""

import pytest

from sluice.base.errors import SettingsError
from sluice.base.home import Home
from sluice.cli.app import run_command


@pytest.mark.parametrize("url", ["s3://bucket/home", "gs://x", "file:///tmp/x"])
def test_a_url_is_rejected_without_creating_a_folder(url, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SettingsError, match="must be a folder of this machine"):
        Home.from_environment({"SLUICE_HOME": url}, cwd=tmp_path)
    monkeypatch.setenv("SLUICE_HOME", url)
    assert run_command(["doctor"]) == 2
    assert url in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
