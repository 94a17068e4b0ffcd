"""Specs, and the one line that each mistake in a spec gives."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import ClassVar, Literal

import pytest

from avsim import estimators, policies, registry
from avsim.errors import InputError


@dataclass(frozen=True)
class Thing:
    name: ClassVar[str] = "thing"
    positional: ClassVar[str] = "size"

    size: int
    share: float = 0.5
    loud: bool = False
    mode: Literal["fast", "slow"] = "fast"
    limit: int | None = None


@dataclass(frozen=True)
class Bare:
    name: ClassVar[str] = "bare"


CLASSES = {"thing": Thing, "bare": Bare}


def parse(spec: str) -> object:
    return registry.from_spec(spec, "policies", CLASSES)


def test_options_of_every_type() -> None:
    spec = " thing: 3 , share=0.25, loud=yes, mode=slow, limit=7 "
    assert parse(spec) == Thing(3, 0.25, True, "slow", 7)
    assert parse("thing:size=3,loud=0,limit=none") == Thing(3)
    assert parse("bare") == Bare()


def test_the_shortest_spec_leaves_defaults_out() -> None:
    assert registry.format_spec(Thing(3)) == "thing:3"
    assert registry.format_spec(Thing(3, loud=True, limit=2)) == "thing:3,loud=true,limit=2"
    assert registry.format_spec(Bare()) == "bare"
    assert registry.format_spec(policies.make("prefix-scheduler:early_stop=no")) == "prefix-scheduler:early_stop=false"


def test_dashes_in_option_names_are_underscores() -> None:
    assert estimators.make("position-rate:prior-weight=3").prior_weight == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("thnig:3", "unknown policy 'thnig'; did you mean 'thing'?"),
        ("zzz", "unknown policy 'zzz'; known: bare, thing"),
        ("thing:3,shore=1", "thing: no option 'shore'; did you mean 'share'?"),
        ("thing:3,xyz=1", "thing: no option 'xyz'; known: limit, loud, mode, share, size"),
        ("thing:three", "thing: option size must be a int, not 'three'"),
        ("thing:3,share=much", "thing: option share must be a float, not 'much'"),
        ("thing:3,loud=perhaps", "thing: option loud must be a bool, not 'perhaps'"),
        ("thing:3,mode=fats", "thing: option mode is 'fats'; did you mean 'fast'?"),
        ("thing:3,limit=few", "thing: option limit must be a int, not 'few'"),
        ("thing", "thing needs size: write thing:size=…"),
        ("thing:share=1", "thing needs size: write thing:size=…"),
        ("thing:3,4", "thing: option size is given twice: '3' and '4'"),
        ("thing:3,share=1,share=2", "thing: option share is given twice: '1' and '2'"),
        ("bare:3", "bare: cannot read '3'; write option=value (it has no options)"),
        ("bare:size=3", "bare has no options"),
    ],
)
def test_mistakes_in_a_spec(spec: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(spec)
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


def test_mistakes_in_the_specs_of_real_classes() -> None:
    with pytest.raises(InputError, match="unknown estimator 'online-logstic'; did you mean 'online-logistic'"):
        estimators.make("online-logstic")
    with pytest.raises(InputError, match="unknown policy 'adaptve'; did you mean 'adaptive'"):
        policies.make("adaptve")
    with pytest.raises(InputError, match="fixed needs k: write fixed:k="):
        policies.make("fixed")
    with pytest.raises(InputError, match="oracle: option rule is 'exat'; did you mean 'exact'"):
        policies.make("oracle:exat")
    with pytest.raises(InputError, match="option l2 must be a float"):
        estimators.make("online-logistic:l2=small")
    with pytest.raises(InputError, match="refit_interval must be at least 1"):
        estimators.make("position-rate:refit_interval=0")


def entry_points(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    entry = metadata.EntryPoint(name, value, "avsim.policies")
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: [entry] if group == entry.group else [])


def test_installed_packages_add_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points(monkeypatch, "mine", "collections:OrderedDict")
    assert set(registry.installed("policies", CLASSES)) == {"thing", "bare", "mine"}
    assert "mine" in policies.available()
    assert "mine" not in estimators.available()


def test_an_installed_package_cannot_take_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points(monkeypatch, "adaptive", "collections:OrderedDict")
    with pytest.raises(InputError, match="registers policies 'adaptive', which already exists"):
        policies.available()


@pytest.mark.parametrize("value", ["no_such_module:Thing", "collections:NoSuchName"])
def test_a_broken_entry_point_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry_points(monkeypatch, "mine", value)
    with pytest.raises(InputError, match="cannot load policies 'mine' from entry point"):
        policies.available()


def test_suggestions() -> None:
    assert registry.suggest("adaptiv", ["none", "adaptive"]) == "; did you mean 'adaptive'?"
    assert registry.suggest("x", ["b", "a"]) == "; known: a, b"
