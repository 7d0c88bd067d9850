"""Every file that is started by hand starts: its `--help` ends well, names no error, and is no wider than the terminal.

The peers in `benchmarks/` are left out: they run in an interpreter of their own, which has PyTorch.
"""

import pathlib
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
    if not path.startswith("scripts/"):  # tyro, which they use, puts each paragraph into one line
        commands_and_flags = ("    ", "  -", "usage: python ")  # are never broken
        shown = [line for line in said.out.splitlines() if not line.startswith(commands_and_flags)]
        assert max(map(len, shown)) <= 80, max(shown, key=len)
