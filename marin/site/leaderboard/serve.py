"""`marin leaderboard serve`: a built site on this machine's loopback address, with the headers that a good host would send."""

import mimetypes
import pathlib

from starlette.applications import Starlette
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from marin.errors import ConfigError
from marin.site.leaderboard.build import POLICY
from marin.site.leaderboard.output import RECORD
from marin.web.guard import Guard, loopback_hosts, read_only

HEADER_POLICY = f"{POLICY}; frame-ancestors 'none'"
# Those that Python's table does not know.
_TYPES = {".atom": "application/atom+xml", ".bib": "text/plain", ".parquet": "application/vnd.apache.parquet"}


def make_app(site: pathlib.Path, port: int) -> ASGIApp:
    """The site's files and nothing else, for a server on `port`: links out of the directory are not followed.

    Raises:
        ConfigError: if the directory holds no site.
    """
    if not (site / RECORD).is_file() or not (site / "index.html").is_file():
        raise ConfigError(
            f"{site}: no built site here: run `marin leaderboard build --results-dir DIR --output {site}` first"
        )
    for ending, kind in _TYPES.items():
        mimetypes.add_type(kind, ending)
    files = Starlette()
    files.mount("/", StaticFiles(directory=site, html=True, follow_symlink=False))
    return Guard(files, loopback_hosts(port), policy=HEADER_POLICY, rules=[read_only])
