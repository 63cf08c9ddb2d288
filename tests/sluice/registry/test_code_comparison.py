"""Comparison of the current code with that of a version, and loading of its stored code."""

import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import CodeMismatch, ContractError, IntegrityError
from sluice.registry.ledger import Ledger
from sluice.registry.loading import compare_version, load_members
from sluice.registry.rollouts import RolloutLedger
from sluice.registry.stored_code import (
    CODE_ROLE,
    StoredModule,
    pack_code,
    unpack_code,
    use_stored_modules,
)
from sluice.rollout.observations import ArmCounts, TrafficCounts
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state_machine import advance
from sluice.serving.deployed import load_deployed
from tests.sluice.registry.code_samples import (
    LAYERS,
    OTHER_LAYERS,
    UserCode,
    promote_version,
)
from tests.sluice.registry.ledger_samples import MODEL, Clock, register_sample, sample_lineage
from tests.sluice.registry.test_loading import approve, with_candidate_digest

ONES = np.ones((1, 8, 2), np.float32)


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserCode:
    return UserCode(tmp_path / "user", monkeypatch)


def test_changed_module_of_the_network_blocks_loading(
    ledger: Ledger, store: ArtifactStore, user: UserCode
) -> None:
    number = promote_version(ledger, store, user.lineage(store))
    version = ledger.version(MODEL, number)
    assert compare_version(version).outcome == "same"
    user.change()

    with pytest.raises(CodeMismatch, match=r"module probe_layers changed") as refused:
        load_deployed(version, store)

    comparison = compare_version(version)
    assert comparison.trained_digest[:12] in refused.value.what
    assert comparison.current_digest[:12] in refused.value.what
    assert comparison.trained_digest != comparison.current_digest
    assert "--code stored" in refused.value.fix
    assert "4f4f4f4f4f4f" in refused.value.fix


def test_running_process_is_compared_by_its_imported_modules(
    ledger: Ledger, store: ArtifactStore, user: UserCode
) -> None:
    """A running server keeps serving its version and rejects one trained later."""
    old = ledger.version(MODEL, promote_version(ledger, store, user.lineage(store)))
    before = load_deployed(old, store).predict(ONES, None)
    running = user.imported_modules()
    user.change()
    new = ledger.register(MODEL, user.lineage(store, salt=1), []).version
    sys.modules.update(running)

    assert np.array_equal(load_deployed(old, store).predict(ONES, None), before)
    with pytest.raises(CodeMismatch, match="module probe_layers changed"):
        load_deployed(new, store)


def test_version_of_other_code_is_not_promoted(
    ledger: Ledger, store: ArtifactStore, user: UserCode
) -> None:
    number = approve(ledger, user.lineage(store))
    user.change()

    with pytest.raises(CodeMismatch, match="probe_layers"):
        ledger.promote(MODEL, number, expected=None, actor="a", reason="r", store=store)

    assert ledger.production_number(MODEL) is None


def test_rollout_of_other_code_awaits_promotion_until_the_code_is_restored(
    url: str, ledger: Ledger, store: ArtifactStore, user: UserCode
) -> None:
    """If this process has other code, the challenger is not rolled back."""
    first = promote_version(ledger, store, sample_lineage(store, salt=1))
    second = approve(ledger, user.lineage(store), ledger.version(MODEL, first).candidate)
    settings = RolloutSettings(min_step_s=0, min_requests=1, shares=(1.0,))
    with RolloutLedger.open(url, clock=Clock()) as rollouts:
        started = rollouts.start_rollout(MODEL, second, settings, actor="a", reason="r").rollout
        now = started.checked_at + timedelta(seconds=1)
        counts = ArmCounts(requests=100)
        traffic = TrafficCounts(
            rollout=started.id,
            epoch=started.epoch,
            since=started.step_since,
            until=now,
            production=counts,
            challenger=counts,
        )
        transition = advance(started, traffic, now=now, production=started.production)
        rollouts.record_transition(started, transition)
        user.change()

        with pytest.raises(CodeMismatch, match="module probe_layers changed"):
            rollouts.finish_rollout(MODEL, actor="a", store=store)

        assert rollouts.rollout(MODEL) == transition.rollout
        assert transition.rollout.phase == "awaiting_promotion"
        assert rollouts.production_number(MODEL) == first
        assert [r.error for r in rollouts.audit() if r.outcome == "refused"] == ["CodeMismatch"]
        user.change(LAYERS)

        assert rollouts.finish_rollout(MODEL, actor="a", store=store).outcome == "promote"
        assert rollouts.production_number(MODEL) == second


def test_rollback_reports_that_the_code_was_not_rolled_back(
    ledger: Ledger, store: ArtifactStore, user: UserCode
) -> None:
    first = promote_version(ledger, store, user.lineage(store))
    user.change()
    second = promote_version(ledger, store, user.lineage(store, salt=1), before=first)

    moved = ledger.rollback(MODEL, expected=second, actor="a", reason="r", store=store)

    assert ledger.production_number(MODEL) == first
    assert "The code was not rolled back" in moved.summary
    assert "module probe_layers changed" in moved.summary
    assert "before you serve the version here" in moved.summary


def test_rollback_reports_equal_or_unknown_code(
    ledger: Ledger, store: ArtifactStore, user: UserCode
) -> None:
    first = promote_version(ledger, store, user.lineage(store))
    second = promote_version(ledger, store, user.lineage(store, salt=1), before=first)
    same = ledger.rollback(MODEL, expected=second, actor="a", reason="r", store=store)

    assert "The current code is the code of" in same.summary
    version = ledger.version(MODEL, register_sample(ledger, store, salt=9))
    assert compare_version(version).outcome == "unknown"
    load_deployed(version, store)


def test_stored_code_reproduces_predictions_without_affecting_the_checkout(
    ledger: Ledger, store: ArtifactStore, user: UserCode
) -> None:
    version = ledger.version(MODEL, promote_version(ledger, store, user.lineage(store)))
    before = load_deployed(version, store).predict(ONES, None)
    user.change()
    import probe_layers

    stored_code_output = load_deployed(version, store, code="stored").predict(ONES, None)

    assert np.array_equal(stored_code_output, before)
    import probe_layers as after

    assert after is probe_layers
    assert probe_layers.activation(torch.zeros(1)).item() == 5
    _, networks = load_members(version, version.lineage.members, store, code="stored")
    assert "stored code" in type(networks[0].network).forward.__code__.co_filename


def test_equal_sources_give_equal_archives_and_invalid_bytes_are_rejected() -> None:
    module = StoredModule(source=LAYERS.encode(), is_package=False)
    archive = pack_code({"a": module, "b": module})

    assert archive == pack_code({"b": module, "a": module})
    assert unpack_code(archive) == {"a": module, "b": module}
    for damaged in (b"PK no", archive.replace(b"tanh", b"relu")):
        with pytest.raises(IntegrityError, match="is not an archive written by Sluice"):
            unpack_code(damaged)


def test_stored_code_with_late_imports_is_rejected() -> None:
    source_with_late_import = (
        b"def f():\n    from probe_layers import activation\n    return activation\n"
    )
    modules = {
        "probe_layers": StoredModule(source=LAYERS.encode(), is_package=False),
        "probe_late": StoredModule(source=source_with_late_import, is_package=False),
    }

    with (
        pytest.raises(ContractError, match="probe_late imports probe_layers inside a function"),
        use_stored_modules(modules),
    ):
        pass


def test_module_missing_in_stored_code_is_not_imported_from_the_checkout(
    user: UserCode,
) -> None:
    package = user.folder / "probe_package"
    package.mkdir()
    for name in ("__init__", "present"):
        (package / f"{name}.py").write_text("")
    modules = {"probe_package.kept": StoredModule(source=b"x = 1\n", is_package=False)}

    with use_stored_modules(modules):
        from probe_package import kept

        assert kept.x == 1
        with pytest.raises(ModuleNotFoundError, match="in the stored code"):
            import probe_package.present  # noqa: F401


def test_archive_contains_only_modules_of_the_user(store: ArtifactStore, user: UserCode) -> None:
    stored = unpack_code(store.get(user.lineage(store).artifacts[CODE_ROLE]))

    assert {"probe_net", "probe_layers", "tests.support.synthetic"} <= stored.keys()
    assert not [
        n for n in stored if n.partition(".")[0] not in {"probe_net", "probe_layers", "tests"}
    ]


def test_other_package_version_causes_a_warning_and_no_rejection(
    ledger: Ledger, store: ArtifactStore, user: UserCode
) -> None:
    lineage = user.lineage(store)
    identity = lineage.code_identity.model_copy(
        update={"distributions": lineage.code_identity.distributions | {"torch": "1.0"}}
    )
    lineage = with_candidate_digest(
        lineage.model_copy(update={"code": identity.digest, "code_identity": identity})
    )
    version = ledger.register(MODEL, lineage, []).version

    load_deployed(version, store)

    comparison = compare_version(version)
    assert comparison.outcome == "same"
    assert "package torch 1.0 -> " in comparison.warning("version 1")


def test_stored_code_must_match_the_code_digest(
    ledger: Ledger, store: ArtifactStore, user: UserCode
) -> None:
    lineage = user.lineage(store)
    modules = unpack_code(store.get(lineage.artifacts[CODE_ROLE]))
    modules["probe_layers"] = StoredModule(source=OTHER_LAYERS.encode(), is_package=False)
    forged = lineage.model_copy(update={"artifacts": {CODE_ROLE: store.put(pack_code(modules))}})
    version = ledger.register(MODEL, forged, []).version

    with pytest.raises(IntegrityError, match="probe_layers does not"):
        load_deployed(version, store, code="stored")


def test_loading_stored_code_of_a_version_without_it_is_rejected(
    ledger: Ledger, store: ArtifactStore
) -> None:
    version = ledger.version(MODEL, register_sample(ledger, store, salt=9))

    with pytest.raises(CodeMismatch, match="was stored without its code"):
        load_deployed(version, store, code="stored")


def test_code_identity_that_does_not_match_the_code_digest_is_rejected(
    ledger: Ledger, store: ArtifactStore, user: UserCode
) -> None:
    lineage = user.lineage(store)
    identity = lineage.code_identity.model_copy(update={"distributions": {}})

    with pytest.raises(ContractError, match="modules, packages and data files have the digest"):
        ledger.register(MODEL, lineage.model_copy(update={"code_identity": identity}), [])
