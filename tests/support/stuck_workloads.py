"""The healthy workload, and variants that hang or crash, for tests of the supervising process."""

import ctypes
import os
import signal
import time

import numpy as np
import pandas as pd
from torch import Tensor, nn

from sluice.models.settings import ModelSettings
from tests.support.failfast_workloads import Net, OwnNet


class Healthy(OwnNet):
    """Has no defect."""


class HangingLoader(OwnNet):
    def load_rows(self) -> pd.DataFrame:
        while True:  # like a server that never responds
            time.sleep(0.05)


class BusyLoader(OwnNet):
    """Loading takes 1 s of CPU time."""

    def load_rows(self) -> pd.DataFrame:
        end = time.process_time() + 1.0
        while time.process_time() < end:
            pass
        return super().load_rows()


class EndlessNet(Net):
    def forward(self, x: Tensor) -> Tensor:
        while True:
            x = x + 0


class EndlessForward(OwnNet):
    net = EndlessNet


class CrashNet(Net):
    def forward(self, x: Tensor) -> Tensor:
        ctypes.string_at(0)
        return x


class CrashInNativeCode(OwnNet):
    net = CrashNet


class KilledNet(Net):
    def forward(self, x: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return x


class KilledBySignal(OwnNet):
    net = KilledNet


class ExitsProcess(OwnNet):
    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        os._exit(7)


class GrowingNet(Net):
    """Allocates more and more memory, like a cache that is never cleared."""

    def forward(self, x: Tensor) -> Tensor:
        self.kept = []
        while True:
            self.kept.append(np.ones(2**24))  # 128 MiB, written to


class GrowingMemory(OwnNet):
    net = GrowingNet


class HugeModel(OwnNet):
    """A layer of 2 ** 50 bytes, which cannot be allocated."""

    def build_model(
        self, num_features: int, num_outputs: int, settings: ModelSettings
    ) -> nn.Module:
        return nn.Linear(2**24, 2**24)


class PrintsToStdout(OwnNet):
    def load_rows(self) -> pd.DataFrame:
        print("loading from the user's own code")
        return super().load_rows()
