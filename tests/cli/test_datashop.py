"""`marin datashop`: the page's flags are not taken silently where a config is run."""

import argparse

import pytest

from marin.cli import datashop
from marin.errors import ConfigError


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (["--prefix", "store"], "put it after CONFIG, as in `marin datashop run wish.py --prefix store`"),
        (["--prefix", ""], "put it after CONFIG"),
        (["--port", str(datashop.DEFAULT_PORT)], "`--port` and `--data` are the page's"),
        (["--data", "texts"], "`--port` and `--data` are the page's"),
    ],
)
def test_flags_of_the_page_before_run_are_refused(before: list[str], message: str) -> None:
    parser = argparse.ArgumentParser(prog="marin datashop")
    datashop.add_arguments(parser)
    with pytest.raises(ConfigError) as refused:
        datashop.run(parser.parse_args([*before, "run", "wish.py", "--dry_run"]))
    assert message in str(refused.value)


def test_run_without_a_config_names_only_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="marin datashop")
    datashop.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["run"])
    assert capsys.readouterr().err.strip().endswith("required: CONFIG")


@pytest.mark.parametrize("name", [".", "..", "experiments/datashop", "no_such_module"])
def test_config_that_is_no_file_and_no_module_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no .py file and no module: give a file"):
        datashop.steps_of(name)
