"""How commands read their flags."""

import argparse
from typing import NoReturn

from marin.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are errors as all others: one line that says what to do next, and exit status 2."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the flags")
