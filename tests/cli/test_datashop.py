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
