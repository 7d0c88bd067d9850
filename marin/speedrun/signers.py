"""Whose signed statements count; a module of its own, as a build of the site needs no verification."""

import pathlib

from marin.errors import ConfigError

ALLOWED_SIGNERS = pathlib.Path(__file__).parents[2] / "experiments" / "speedrun" / "allowed_signers"


def chosen_signers(path: str | None) -> pathlib.Path:
    """The file that somebody names, else the repository's, which need not be there.

    Raises:
        ConfigError: if the named one is not there.
    """
    if path and not pathlib.Path(path).is_file():
        raise ConfigError(f"{path}: no such file: give an ALLOWED SIGNERS file as ssh-keygen(1) describes it")
    return pathlib.Path(path) if path else ALLOWED_SIGNERS
