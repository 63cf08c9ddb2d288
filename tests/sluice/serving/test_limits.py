"""Who may ask, and how often."""

from pathlib import Path

import pytest

from sluice.errors import SettingsError, StorageError
from sluice.serving.limits import RateLimit, Token
from sluice.serving.refusals import NotAuthorized, TooMany
from tests.sluice.serving.serving_samples import SECRET


@pytest.mark.parametrize(
    "shown", [None, "", "Bearer", f"bearer {SECRET} ", f"Basic {SECRET}", "Bearer \udcff", SECRET]
)
def test_anything_but_the_token_is_refused(shown: str | None) -> None:
    with pytest.raises(NotAuthorized):
        Token(SECRET).require(shown)


def passes(shown: str) -> bool:
    try:
        Token(SECRET).require(shown)
    except NotAuthorized:
        return False
    return True


def test_the_token_passes_whatever_the_case_of_its_scheme_but_not_of_itself() -> None:
    found = {scheme: passes(f"{scheme} {SECRET}") for scheme in ("Bearer", "bearer", "BEARER")}

    assert found == dict.fromkeys(("Bearer", "bearer", "BEARER"), True)
    assert not passes(f"Bearer {SECRET.swapcase()}")


@pytest.mark.parametrize("secret", ["", "short", "tab\tin the middle of it", "\u00e9" * 20])
def test_what_is_no_token_is_refused(secret: str) -> None:
    with pytest.raises(SettingsError, match="at least 16 printable ASCII"):
        Token(secret)


def test_a_token_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    Token.read(path).require(f"Bearer {SECRET}")

    with pytest.raises(StorageError, match="cannot be read"):
        Token.read(tmp_path)


def passed(limit: RateLimit, *moments: float) -> list[bool]:
    found = []
    for moment in moments:
        try:
            limit.require(moment)
        except TooMany:
            found.append(False)
        else:
            found.append(True)
    return found


def test_a_burst_passes_and_the_rate_refills_it() -> None:
    limit = RateLimit(per_s=2, burst=3)

    assert passed(limit, 0, 0, 0, 0) == [True, True, True, False]
    assert passed(limit, 0.4, 0.5, 0.6) == [False, True, False]
    assert passed(limit, *[100.0] * 4) == [True, True, True, False]


def test_a_clock_that_goes_back_gives_nothing() -> None:
    limit = RateLimit(per_s=1, burst=1)

    assert passed(limit, 10, 5, 5.5, 6) == [True, False, False, True]
