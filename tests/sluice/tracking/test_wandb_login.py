"""Whose key is used: the environment's, or that of ``wandb login``."""

import pytest

from sluice.tracking.wandb_login import find_wandb_key

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


def test_without_a_readable_login_there_is_no_key(home, tmp_path):
    (tmp_path / "broken").write_text("machine api.wandb.ai login")

    assert find_wandb_key({}) is None
    assert find_wandb_key(home | {"NETRC": "/dev/null"}) is None
    assert find_wandb_key(home | {"NETRC": str(tmp_path / "broken")}) is None
    assert find_wandb_key({"HOME": str(tmp_path / "missing")}) is None
