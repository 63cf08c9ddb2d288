"""W&B key and server from the environment or from ``wandb login``."""

import pytest

from sluice.tracking.wandb_login import find_wandb_key, find_wandb_server, with_wandb_login

NETRC = """\
machine api.wandb.ai
  login user
  password stored
machine own.example login u password q
"""


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".netrc").write_text(NETRC)
    (tmp_path / ".netrc").chmod(0o600)
    return {"HOME": str(tmp_path)}


def test_key_of_the_environment_has_priority(home):
    assert find_wandb_key(home | {"WANDB_API_KEY": "given"}) == "given"
    assert find_wandb_key(home) == "stored"


def test_key_is_that_of_the_configured_server(home):
    assert find_wandb_key(home | {"WANDB_BASE_URL": "https://own.example:8080/x"}) == "q"
    assert find_wandb_key(home | {"WANDB_BASE_URL": "https://other.example"}) is None


def test_server_is_read_from_wandb_settings(home, tmp_path):
    """``wandb login --host`` stores the server in the settings file of wandb."""
    assert find_wandb_server({}) == find_wandb_server(home) == "https://api.wandb.ai"
    settings = tmp_path / ".config" / "wandb" / "settings"
    settings.parent.mkdir(parents=True)
    settings.write_text("[default]\nbase_url = https://own.example:8080\n")

    login = with_wandb_login(home)

    assert (login["WANDB_BASE_URL"], login["WANDB_API_KEY"]) == ("https://own.example:8080", "q")
    assert find_wandb_server(home | {"WANDB_BASE_URL": "https://x.example"}) == "https://x.example"
    settings.write_text("base_url without a section")
    assert find_wandb_server(home) == "https://api.wandb.ai"


def test_key_is_none_without_a_readable_login(home, tmp_path):
    (tmp_path / "broken").write_text("machine api.wandb.ai login")

    assert find_wandb_key({}) is None
    assert find_wandb_key(home | {"NETRC": "/dev/null"}) is None
    assert find_wandb_key(home | {"NETRC": str(tmp_path / "broken")}) is None
    assert find_wandb_key({"HOME": str(tmp_path / "missing")}) is None


def test_empty_variables_are_treated_as_unset():
    empty = {"WANDB_CONFIG_DIR": "", "NETRC": "", "HOME": ""}
    for environ in (empty, {"WANDB_CONFIG_DIR": "", "NETRC": ""}):
        assert find_wandb_server(environ) == "https://api.wandb.ai"
        assert find_wandb_key(environ) is None
