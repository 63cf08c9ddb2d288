"""Helpers for tests of stored code: a network in two user modules, and its lineage."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.registry.code_comparison import collect_own_modules
from sluice.registry.ledger import Ledger
from sluice.registry.lineage import BASELINE, Lineage
from sluice.registry.stored_code import CODE_ROLE, pack_code
from sluice.training.code import identify_code
from sluice.training.weights import pack_model
from tests.sluice.registry.ledger_samples import MODEL, SETTINGS, sample_lineage
from tests.sluice.registry.test_loading import (
    approve,
    with_candidate_digest,
    with_settings,
    with_weights,
)
from tests.support.synthetic import SineWorkload

LAYERS = "import torch\n\n\ndef activation(x):\n    return torch.tanh(x)\n"
OTHER_LAYERS = LAYERS.replace("tanh(x)", "relu(x) + 5")
NET = """
from torch import nn

from probe_layers import activation


class Net(nn.Module):
    def __init__(self, num_features, num_outputs, settings):
        super().__init__()
        self.head = nn.Linear(num_features, num_outputs)

    def forward(self, x):
        return activation(self.head(x[:, -1]))
"""

_NAMES = ("probe_net", "probe_layers")


class UserCode:
    """The modules ``probe_net`` and ``probe_layers`` of a user, in a folder on ``sys.path``."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "probe_net.py").write_text(NET)
        (folder / "probe_layers.py").write_text(LAYERS)
        patch.syspath_prepend(str(folder))
        self.forget()

    def forget(self) -> None:
        """Remove the modules from ``sys.modules``, so that the next import reads their files."""
        for name in _NAMES:
            sys.modules.pop(name, None)

    def imported_modules(self) -> dict[str, ModuleType]:
        """Return the modules that this process imported, to restore them in ``sys.modules``."""
        import probe_net  # noqa: F401

        return {name: sys.modules[name] for name in _NAMES}

    def change(self, layers: str = OTHER_LAYERS) -> None:
        """Change the activation and simulate a restart of the process."""
        (self.folder / "probe_layers.py").write_text(layers)
        self.forget()

    def lineage(self, store: ArtifactStore, *, salt: int = 0) -> Lineage:
        """Return lineage of a version trained with the current code, and store that code."""
        import probe_net

        settings = ModelSettings(architecture="probe_net:Net")
        network = probe_net.Net(2, 1, settings)
        torch.nn.init.constant_(network.head.weight, 0.1 + salt)
        torch.nn.init.constant_(network.head.bias, 0.1)
        weights = store.put(
            pack_model(
                Scaled(network, num_features=2, num_outputs=1, scale_inputs=True, scale_target=True)
            )
        )
        lineage = with_weights(sample_lineage(store), weights)
        lineage = lineage.model_copy(update={"members": lineage.members[:1], "seeds": (0,)})
        lineage = with_settings(lineage, SETTINGS | {"model": settings.model_dump(mode="json")})
        identity = identify_code(SineWorkload(), settings)
        code = store.put(pack_code(collect_own_modules(SineWorkload(), settings)))
        update = {
            "code": identity.digest,
            "code_identity": identity,
            "artifacts": {CODE_ROLE: code},
        }
        return with_candidate_digest(lineage.model_copy(update=update))


def promote_version(
    ledger: Ledger, store: ArtifactStore, lineage: Lineage, before: int | None = None
) -> int:
    """Register and promote a version that replaces production; return its number."""
    reference = BASELINE if before is None else ledger.version(MODEL, before).candidate
    number = approve(ledger, lineage, reference)
    ledger.promote(MODEL, number, expected=before, actor="a", reason="r", store=store)
    return number
