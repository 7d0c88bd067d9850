"""Every name that code uses is defined. Ruff and mypy are told to look away, as jaxtyping's dimensions are names in strings."""

import json
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]


def _strings(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the strings of a file begin and end, as lines from 1 and columns from 0."""
    with path.open("rb") as source:
        return [
            (token.start, token.end) for token in tokenize.tokenize(source.readline) if token.type == tokenize.STRING
        ]


def _undefined(folder: Path) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--select=F821",
        "--output-format=json",
    ]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found = []
    for finding in json.loads(done.stdout):
        path, place = Path(finding["filename"]), (finding["location"]["row"], finding["location"]["column"] - 1)
        if not any(start <= place < end for start, end in _strings(path)):
            found.append(f"{path.relative_to(folder)}:{place[0]}: {finding['message']}")
    return found


def test_no_code_uses_a_name_that_is_not_there():
    pytest.importorskip("ruff", reason="ruff is not installed")
    folders = ("marin", "experiments", "scripts", "benchmarks", "tests")
    assert [line for folder in folders for line in _undefined(_ROOT / folder)] == []


def test_an_undefined_name_is_found_and_a_dimension_is_none(tmp_path):
    pytest.importorskip("ruff", reason="ruff is not installed")
    (tmp_path / "made.py").write_text('def f(x: Float[Array, "batch wide"]) -> int:\n    return missing\n')
    names = [line.rpartition(" ")[2] for line in _undefined(tmp_path)]
    assert names == ["`Float`", "`Array`", "`missing`"]
