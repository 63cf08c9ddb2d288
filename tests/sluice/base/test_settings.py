"""Settings are frozen and strict, and errors suggest the nearest key (CONF-1)."""

import math

import pytest
from pydantic import Field, ValidationError, field_validator, model_validator

from sluice.base.errors import EXIT_USER_ERROR, SettingsError
from sluice.base.settings import Record, Settings, suggest_nearest
from sluice.base.yaml_text import load_yaml


class Inner(Settings):
    rate: float = Field(0.1, gt=0, le=1)


class Outer(Settings):
    num_rows: int = Field(5, ge=1)
    inner: Inner = Inner()
    names: tuple[str, ...] = Field((), strict=False)  # YAML has no tuples


class Bounds(Settings):
    low: int = 0
    high: int = 9

    @field_validator("low")
    @classmethod
    def _check_even(cls, low: int) -> int:
        if low % 2:
            raise ValueError("low must be even")
        return low

    @model_validator(mode="after")
    def _check_order(self) -> "Bounds":
        if self.high < self.low:
            raise ValueError("high: must not be below low")
        return self


class WithBounds(Settings):
    limits: Bounds = Bounds()


class Evidence(Record):
    loss: float


def test_defaults_and_values() -> None:
    settings = Outer.parse({"num_rows": 7, "inner": {"rate": 0.5}}, where="defs.yaml")

    assert settings == Outer(num_rows=7, inner=Inner(rate=0.5))


def test_unknown_key_error_has_its_path_and_the_nearest_key() -> None:
    with pytest.raises(SettingsError, match=r"defs.yaml: 'num_row' .* Did you mean 'num_rows'\?"):
        Outer.parse({"num_row": 7}, where="defs.yaml")
    with pytest.raises(
        SettingsError, match=r"'inner.rte' .* Did you mean 'rate'\? Known settings: ra"
    ):
        Outer.parse({"inner": {"rte": 0.5}}, where="defs.yaml")


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"num_rows": 0}, "'num_rows': Input should be greater than or equal to 1, got 0"),
        ({"num_rows": "7"}, "'num_rows': Input should be a valid integer, got '7'"),
        ({"num_rows": 1.0}, "'num_rows': Input should be a valid integer, got 1.0"),
        ({"inner": {"rate": 2}}, "'inner.rate': .* less than or equal to 1, got 2"),
        ({"inner": {"rate": math.nan}}, "'inner.rate': .*finite.*|'inner.rate': .*greater"),
        ({"inner": {"rate": math.inf}}, "'inner.rate'"),
    ],
)
def test_invalid_value_is_shown_with_its_path(values: dict[str, object], cause: str) -> None:
    with pytest.raises(SettingsError, match=cause) as caught:
        Outer.parse(values, where="defs.yaml")

    assert caught.value.exit_code == EXIT_USER_ERROR


@pytest.mark.parametrize("text", ["2e-3", "2e3", "1.5e3", "-2.E4", "+1e-05"])
def test_suggested_spelling_of_a_float_is_valid_yaml(text: str) -> None:
    assert isinstance(load_yaml(text), str)
    with pytest.raises(SettingsError, match="YAML reads this value as text") as caught:
        Outer.parse({"inner": {"rate": text}}, where="defs.yaml")

    suggested = load_yaml(caught.value.what.rpartition("write ")[2].removesuffix("."))

    assert isinstance(suggested, float)
    assert suggested == float(text)


def test_all_invalid_keys_are_listed() -> None:
    with pytest.raises(SettingsError, match=r"'num_rows'.*'wrong'"):
        Outer.parse({"num_rows": 0, "wrong": 1}, where="defs.yaml")


def test_messages_of_custom_validators_are_plain() -> None:
    """They have no empty path, no prefix 'Value error' and no list of all keys (CONF-1)."""

    def get_message(cls: type[Settings], values: dict[str, object]) -> str:
        with pytest.raises(SettingsError) as caught:
            cls.parse(values, where="defs.yaml")
        return caught.value.what

    validator_message = "high: must not be below low."
    assert get_message(Bounds, {"low": 2, "high": 1}) == f"defs.yaml: {validator_message}"
    assert (
        get_message(WithBounds, {"limits": {"low": 2, "high": 1}})
        == f"defs.yaml: 'limits': {validator_message}"
    )
    assert get_message(Bounds, {"low": 3}) == "defs.yaml: 'low': low must be even, got 3."


def test_invalid_json_is_not_quoted_completely() -> None:
    with pytest.raises(SettingsError, match=r"Invalid JSON") as caught:
        Outer.parse_json("x" * 10_000, where="a file")

    assert len(caught.value.what) < 500
    assert "''" not in caught.value.what


def test_list_is_accepted_for_a_tuple() -> None:
    assert Outer.parse({"names": ["a", "b"]}, where="defs.yaml").names == ("a", "b")


def test_settings_and_records_are_frozen() -> None:
    for value in (Outer(), Evidence(loss=1.0)):
        with pytest.raises(ValidationError, match="frozen"):
            value.extra = 1  # type: ignore[union-attr]


def test_constructor_reports_unknown_key_and_nested_error_has_its_path() -> None:
    with pytest.raises(SettingsError, match=r"^Outer: 'num_row' .* Did you mean 'num_rows'\?"):
        Outer(num_row=3)  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match=r"^f: 'inner.rat' is not a setting. Did you mean"):
        Outer.parse({"inner": {"rat": 1.0}}, where="f")


def test_record_keeps_non_finite_values() -> None:
    """The record of a failed run may contain NaN and infinity."""
    for loss in (math.nan, math.inf, -math.inf):
        loaded = Evidence.model_validate_json(Evidence(loss=loss).model_dump_json())
        assert repr(loaded.loss) == repr(loss)


def test_no_suggestion_if_no_name_is_similar() -> None:
    assert suggest_nearest("rate", ["rote", "x"]) == " Did you mean 'rote'?"
    assert suggest_nearest("zzz", ["rate"]) == ""


class NestedCollections(Settings):
    inner: Inner | None = None
    many: tuple[Inner, ...] = Field((), strict=False)
    named: dict[str, Inner] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"inner": {"rte": 1}}, "inner.rte"),
        ({"many": [{"rte": 1}]}, "many.0.rte"),
        ({"named": {"first": {"rte": 1}}}, "named.first.rte"),
    ],
)
def test_unknown_nested_key_is_matched_only_with_keys_of_its_level(
    values: dict[str, object], path: str
) -> None:
    """Suggestions from another level would mislead (CONF-1)."""
    with pytest.raises(SettingsError) as caught:
        NestedCollections.parse(values, where="defs.yaml")

    assert f"'{path}' is not a setting. Did you mean 'rate'? Known settings: " in str(caught.value)
    assert "many" not in str(caught.value).partition("Known settings")[2]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("learning_rat", "inner.learning_rate"), ("learning_rate", "inner.learning_rate"), ("zz", "")],
)
def test_unknown_top_level_key_is_matched_with_nested_keys(name, hint):
    class Training(Settings):
        learning_rate: float = 0.1

    class Pipeline(Settings):
        inner: Training | None = None
        many: tuple[Inner, ...] = ()

    with pytest.raises(SettingsError) as caught:
        Pipeline.parse({name: 1}, where="defs.yaml")

    expected = (
        f"is not a setting.{f' Did you mean {hint!r}?' if hint else ''} Known settings: inner"
    )
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("grace", "grace_period"), ("bracket", "brackets"), ("grce_period", "grace_period")],
)
def test_prefix_or_misspelling_of_a_known_name_is_matched(name, expected):
    assert (
        suggest_nearest(name, ["brackets", "grace_period", "max_t"])
        == f" Did you mean '{expected}'?"
    )
    assert suggest_nearest("t", ["max_t"]) == ""
