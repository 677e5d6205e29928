"""What a type checker finds before a program runs, and what it lets through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
RIGHT = """
import asyncio
import baton
import numpy as np

async def main(model: baton.Model) -> None:
    task = asyncio.create_task(model.infer(np.zeros(3), within=0.1, accuracy_min=75.0))
    outcome: baton.Outcome = await task
    match outcome:
        case baton.Completed(output, late=False):
            print(output.sum(), outcome.accuracy)
        case baton.Completed():
            pass
        case baton.Dropped(reason, retry_after_s=wait):
            if reason == "quota":
                print(wait)
        case baton.Failed("engine"):
            pass
"""
WRONG = {
    "model.infer(b'', within='soon')": "arg-type",
    "model.submit(b'', deadline=1)": "call-arg",
    "model.submit(b'').wait().output": "union-attr",
    "baton.connect('127.0.0.1:7700').slots_in_use = 1": "misc",
    "dropped.reason == 'quotas'": "comparison-overlap",
}


def test_programs_are_checked(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    head = RIGHT + "\ndef act(model: baton.Model, dropped: baton.Dropped) -> None:\n"
    file = tmp_path / "program.py"
    file.write_text(head + "".join(f"    {line}\n" for line in WRONG))
    line = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(file)]
    said = subprocess.run(line, capture_output=True, text=True, timeout=300, cwd=PACKAGE).stdout
    errors: dict[int, str] = {}
    for text in said.splitlines()[:-1]:
        number = int(text.removeprefix(str(file)).split(":")[1])
        errors[number] = errors.get(number, "") + text
    first = head.count("\n") + 1
    assert list(errors) == list(range(first, first + len(WRONG))), said
    for text, code in zip(errors.values(), WRONG.values(), strict=True):
        assert f"[{code}]" in text, said
