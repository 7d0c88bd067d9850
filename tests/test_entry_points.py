"""Every file that is started by hand starts: its `--help` ends well, names no error, and is no wider than the terminal.

The peers in `benchmarks/` are left out: they run in an interpreter of their own, which has PyTorch.
"""

import pathlib
import re
import runpy
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def _starts_by_hand(path: pathlib.Path) -> bool:
    return '\nif __name__ == "__main__":' in path.read_text() and not path.name.startswith("peer_")


STARTED = sorted(
    str(path.relative_to(ROOT))
    for folder in ("benchmarks", "experiments", "marin/run", "scripts")
    for path in (ROOT / folder).rglob("*.py")
    if _starts_by_hand(path)
)


@pytest.mark.parametrize("path", STARTED)
def test_file_started_with_help_shows_its_usage_within_80_columns(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [path, "--help"])
    status = None
    try:
        runpy.run_path(str(ROOT / path), run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    said = capsys.readouterr()
    assert not status and "usage: " in said.out and said.err == ""
    assert "\n\n\n" not in said.out
    _usage, _, text = said.out.partition("\n\n")  # its width depends on where the repository lies
    shown = [line for line in text.splitlines() if not re.match(r" {4}\S", line)]  # commands are never broken
    assert max(map(len, shown)) <= 80, max(shown, key=len)
    if not path.startswith("benchmarks/"):  # a file's name alone is nothing that can be typed
        assert said.out.startswith("usage: python ")
