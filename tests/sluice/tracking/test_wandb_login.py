"""Whose key is used: the environment's, or that of ``wandb login``."""

import pytest

from sluice.tracking.wandb_login import find_wandb_key, find_wandb_server, with_wandb_login

LOGIN = """\
machine api.wandb.ai
  login user
  password stored
machine own.example login u password q
"""


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".netrc").write_text(LOGIN)
    (tmp_path / ".netrc").chmod(0o600)
    return {"HOME": str(tmp_path)}


def test_the_key_of_the_environment_comes_first(home):
    assert find_wandb_key(home | {"WANDB_API_KEY": "given"}) == "given"
    assert find_wandb_key(home) == "stored"


def test_the_login_is_that_of_the_server(home):
    assert find_wandb_key(home | {"WANDB_BASE_URL": "https://own.example:8080/x"}) == "q"
    assert find_wandb_key(home | {"WANDB_BASE_URL": "https://other.example"}) is None


def test_the_server_is_that_of_the_login(home, tmp_path):
    """``wandb login --host`` stores the server in wandb's own settings."""
    assert find_wandb_server({}) == find_wandb_server(home) == "https://api.wandb.ai"
    settings = tmp_path / ".config" / "wandb" / "settings"
    settings.parent.mkdir(parents=True)
    settings.write_text("[default]\nbase_url = https://own.example:8080\n")

    login = with_wandb_login(home)

    assert (login["WANDB_BASE_URL"], login["WANDB_API_KEY"]) == ("https://own.example:8080", "q")
    assert find_wandb_server(home | {"WANDB_BASE_URL": "https://x.example"}) == "https://x.example"
    settings.write_text("base_url without a section")
    assert find_wandb_server(home) == "https://api.wandb.ai"


def test_without_a_readable_login_there_is_no_key(home, tmp_path):
    (tmp_path / "broken").write_text("machine api.wandb.ai login")

    assert find_wandb_key({}) is None
    assert find_wandb_key(home | {"NETRC": "/dev/null"}) is None
    assert find_wandb_key(home | {"NETRC": str(tmp_path / "broken")}) is None
    assert find_wandb_key({"HOME": str(tmp_path / "missing")}) is None


def test_empty_variables_are_as_good_as_none():
    empty = {"WANDB_CONFIG_DIR": "", "NETRC": "", "HOME": ""}
    for environ in (empty, {"WANDB_CONFIG_DIR": "", "NETRC": ""}):
        assert find_wandb_server(environ) == "https://api.wandb.ai"
        assert find_wandb_key(environ) is None
