"""CONF-1: settings are frozen and strict, and a typo suggests the nearest key."""

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


class Ordered(Settings):
    low: int = 0
    high: int = 9

    @field_validator("low")
    @classmethod
    def _even(cls, low: int) -> int:
        if low % 2:
            raise ValueError("low must be even")
        return low

    @model_validator(mode="after")
    def _in_order(self) -> "Ordered":
        if self.high < self.low:
            raise ValueError("high: must not be below low")
        return self


class Around(Settings):
    limits: Ordered = Ordered()


class Evidence(Record):
    loss: float


def test_defaults_and_values() -> None:
    built = Outer.parse({"num_rows": 7, "inner": {"rate": 0.5}}, where="defs.yaml")

    assert built == Outer(num_rows=7, inner=Inner(rate=0.5))


def test_typo_names_the_nearest_key_where_it_is() -> None:
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
def test_value_out_of_range_is_shown(values: dict[str, object], cause: str) -> None:
    with pytest.raises(SettingsError, match=cause) as caught:
        Outer.parse(values, where="defs.yaml")

    assert caught.value.exit_code == EXIT_USER_ERROR


@pytest.mark.parametrize("text", ["2e-3", "2e3", "1.5e3", "-2.E4", "+1e-05"])
def test_the_suggested_form_of_a_number_is_a_number_in_yaml(text: str) -> None:
    assert isinstance(load_yaml(text), str)
    with pytest.raises(SettingsError, match="YAML reads that as text") as caught:
        Outer.parse({"inner": {"rate": text}}, where="defs.yaml")

    suggested = load_yaml(caught.value.what.rpartition("write ")[2].removesuffix("."))

    assert isinstance(suggested, float)
    assert suggested == float(text)


def test_all_invalid_keys_are_listed() -> None:
    with pytest.raises(SettingsError, match=r"'num_rows'.*'wrong'"):
        Outer.parse({"num_rows": 0, "wrong": 1}, where="defs.yaml")


def test_messages_of_own_validators_are_not_repeated() -> None:
    """No empty path, no 'Value error', no listing of every key (CONF-1)."""

    def message(cls: type[Settings], values: dict[str, object]) -> str:
        with pytest.raises(SettingsError) as caught:
            cls.parse(values, where="defs.yaml")
        return caught.value.what

    several = "high: must not be below low."
    assert message(Ordered, {"low": 2, "high": 1}) == f"defs.yaml: {several}"
    assert message(Around, {"limits": {"low": 2, "high": 1}}) == f"defs.yaml: 'limits': {several}"
    assert message(Ordered, {"low": 3}) == "defs.yaml: 'low': low must be even, got 3."


def test_a_whole_file_is_not_repeated_in_a_message() -> None:
    with pytest.raises(SettingsError, match=r"Invalid JSON") as caught:
        Outer.parse_json("x" * 10_000, where="a file")

    assert len(caught.value.what) < 500
    assert "''" not in caught.value.what


def test_lists_are_accepted_for_tuples() -> None:
    assert Outer.parse({"names": ["a", "b"]}, where="defs.yaml").names == ("a", "b")


def test_settings_and_records_are_frozen() -> None:
    for value in (Outer(), Evidence(loss=1.0)):
        with pytest.raises(ValidationError, match="frozen"):
            value.extra = 1  # type: ignore[union-attr]


def test_a_direct_call_reports_a_typo_and_an_error_of_nested_settings_keeps_its_path() -> None:
    with pytest.raises(SettingsError, match=r"^Outer: 'num_row' .* Did you mean 'num_rows'\?"):
        Outer(num_row=3)  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match=r"^f: 'inner.rat' is not a setting. Did you mean"):
        Outer.parse({"inner": {"rat": 1.0}}, where="f")


def test_record_keeps_nonfinite_values() -> None:
    """Evidence of a failure must survive storage."""
    for loss in (math.nan, math.inf, -math.inf):
        back = Evidence.model_validate_json(Evidence(loss=loss).model_dump_json())
        assert repr(back.loss) == repr(loss)


def test_no_suggestion_if_no_name_is_similar() -> None:
    assert suggest_nearest("rate", ["rote", "x"]) == " Did you mean 'rote'?"
    assert suggest_nearest("zzz", ["rate"]) == ""


class House(Settings):
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
def test_typo_in_a_nested_value_is_matched_with_its_siblings(
    values: dict[str, object], path: str
) -> None:
    """CONF-1: keys of another level would mislead."""
    with pytest.raises(SettingsError) as refused:
        House.parse(values, where="defs.yaml")

    assert f"'{path}' is not a setting. Did you mean 'rate'? Known settings: " in str(refused.value)
    assert "many" not in str(refused.value).partition("Known settings")[2]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("learning_rat", "inner.learning_rate"), ("learning_rate", "inner.learning_rate"), ("zz", "")],
)
def test_a_key_without_its_group_is_matched_with_the_keys_of_all_groups(name, hint):
    class Training(Settings):
        learning_rate: float = 0.1

    class Pipeline(Settings):
        inner: Training | None = None
        many: tuple[Inner, ...] = ()

    with pytest.raises(SettingsError) as refused:
        Pipeline.parse({name: 1}, where="defs.yaml")

    expected = (
        f"is not a setting.{f' Did you mean {hint!r}?' if hint else ''} Known settings: inner"
    )
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [("grace", "grace_period"), ("bracket", "brackets"), ("grce_period", "grace_period")],
)
def test_a_part_of_a_known_name_is_matched(name, said):
    assert (
        suggest_nearest(name, ["brackets", "grace_period", "max_t"]) == f" Did you mean '{said}'?"
    )
    assert suggest_nearest("t", ["max_t"]) == ""
