"""A cluster of processes for the tests: a scheduler, an emulated backend, and where it can be had a real model.

BATON names the command; `./x python` sets it.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx_file
import pytest

import baton

CLUSTER = """
[network]
ctrl_us = 20000
response_us = 20000
jitter_us = 10000
[[model]]
name = "quick"
alpha_ms = 0.02
beta_ms = 2
slo_ms = 2000
input_bytes = 4096
batch_max = 64
subcluster = "gpu"
[[model]]
name = "slow"
alpha_ms = 1
beta_ms = 300
slo_ms = 60000
input_bytes = 64
batch_max = 1
subcluster = "slow"
[[model]]
name = "unserved"
alpha_ms = 1
beta_ms = 5
slo_ms = 1000
input_bytes = 64
subcluster = "none"
[[model]]
name = "few"
alpha_ms = 0.1
beta_ms = 1
slo_ms = 2000
input_bytes = 64
max_rps = 1
subcluster = "gpu"
[[model]]
name = "supernet"
slo_ms = 2000
batch_max = 8
input_bytes = 64
subcluster = "gpu"
[[model.variant]]
name = "small"
accuracy = 73.5
alpha_ms = 0.5
beta_ms = 2
[[model.variant]]
name = "large"
accuracy = 80.25
alpha_ms = 1
beta_ms = 150
[[backend]]
name = "gpu"
subcluster = "gpu"
[[backend]]
name = "slow"
subcluster = "slow"
[[backend]]
name = "none"
subcluster = "none"
"""
DIGITS = """
[[model]]
name = "digits"
file = "digits.onnx"
slo_ms = 2000
batch_max = 32
subcluster = "cpu"
[[model]]
name = "pair"
file = "pair.onnx"
dims = { n = 9 }
slo_ms = 2000
subcluster = "cpu"
[[backend]]
name = "cpu"
subcluster = "cpu"
"""
ROOT = Path(__file__).resolve().parents[2]


class Cluster:
    """Processes, each with a line that says that it is ready. All end with the cluster."""

    def __init__(self, folder: Path) -> None:
        self.has_digits = bool(os.environ.get("ORT_DYLIB_PATH"))
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        text = CLUSTER
        if self.has_digits:
            text += DIGITS
            shutil.copy(ROOT / "examples/digits/digits.onnx", folder)
            (folder / "pair.onnx").write_bytes(onnx_file.pair())
        self._file = folder / "cluster.toml"
        self._file.write_text(text)
        self.scheduler = self._start("listening ", "scheduler", "--listen", "127.0.0.1:0")
        for name in ["gpu", "slow", "cpu"] if self.has_digits else ["gpu", "slow"]:
            self._start("ready", "backend", "--scheduler", self.scheduler, "--name", name)

    def _start(self, prefix: str, command: str, *args: str) -> str:
        log = open(self._folder / f"{command}-{len(self._processes)}.log", "w")
        line = [os.environ["BATON"], command, "--config", str(self._file), *args]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        for _ in range(100):
            readable, _, _ = select.select([process.stdout], [], [], 60)
            said = process.stdout.readline() if readable else ""
            if said.startswith(prefix):
                return said[len(prefix) :].strip()
            if not said:
                break
        raise AssertionError(f"{line} did not say {prefix!r}: {Path(log.name).read_text()}")

    def end(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(60)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if "BATON" not in os.environ:
        pytest.exit("BATON is not set: run ./x python, or export BATON=target/release/baton", 2)
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.end()


@pytest.fixture
def onnx(cluster: Cluster) -> None:
    if not cluster.has_digits:
        pytest.skip("no ONNX Runtime: export ORT_DYLIB_PATH=$(./x onnxruntime)")


@pytest.fixture
def client(cluster: Cluster) -> Iterator[baton.Client]:
    with baton.connect(cluster.scheduler, slots_per_model=8) as client:
        yield client


@pytest.fixture
def run(cluster: Cluster) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a program of its own that has `scheduler`; for what happens to a whole process."""

    def run(program: str) -> subprocess.CompletedProcess[str]:
        head = f"import baton\nscheduler = {cluster.scheduler!r}\n"
        line = [sys.executable, "-X", "faulthandler", "-c", head + program]
        return subprocess.run(line, capture_output=True, text=True, timeout=120)

    return run
