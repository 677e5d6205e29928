"""The examples and the programs of the guide, run as a user would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "python/examples"


def run(*line: str) -> str:
    ended = subprocess.run([sys.executable, *line], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout


def test_classify(cluster: Any) -> None:
    assert re.match(r"quick: \[.*\] in \d+\.\d ms\n", run(str(EXAMPLES / "classify.py"), cluster.scheduler, "quick"))
    assert run(str(EXAMPLES / "classify.py"), cluster.scheduler, "unserved") == (
        "unserved: dropped (no_backend), try again in None s\n"
    )


def test_pipelined(cluster: Any) -> None:
    said = run(str(EXAMPLES / "pipelined.py"), cluster.scheduler, "quick", "300")
    assert said == "Counter({'completed': 300})\n"


@pytest.mark.parametrize("example", ["classify.py", "pipelined.py"])
def test_a_program_without_a_cluster_ends_with_a_sentence(example: str) -> None:
    for words, said in [(["127.0.0.1:1"], "127.0.0.1:1"), (["nowhere"], "nowhere")]:
        line = [sys.executable, str(EXAMPLES / example), *words]
        ended = subprocess.run(line, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 1, ended
        assert said in ended.stderr, ended
        assert "Traceback" not in ended.stderr, ended


def test_the_programs_of_the_guide(cluster: Any, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    programs = [block for block in blocks if block.startswith("import")]
    assert len(programs) >= 3
    for number, program in enumerate(programs):
        program = program.replace("127.0.0.1:7700", cluster.scheduler).replace('"digits"', '"quick"')
        program = program.replace("np.float32", "np.uint8")
        file = tmp_path / f"guide_{number}.py"
        file.write_text(program)
        run(str(file))


def test_the_notebook(cluster: Any, onnx: None) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    os.environ.update(BATON_SCHEDULER=cluster.scheduler, BATON_DIGITS=str(ROOT / "examples/digits"))
    notebook = nbformat.read(EXAMPLES / "digits.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (cell,) = (cell for cell in notebook.cells if cell.id == "all")
    assert "% right" in str(cell.outputs)
