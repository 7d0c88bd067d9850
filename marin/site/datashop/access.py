"""Who may use the page: whoever has the address that was printed where it was started.

A run spends money and reads files with the rights of the person who started the server, and the loopback address is open to
everybody with an account on the machine. So the address holds a key, which becomes a cookie that no script and no other site
can use. The key is kept beside the runs, readable by its owner only, so that pages stay open when the server starts again; the
data browser, which everybody on the machine can use, refuses its file.

Forms carry a token made of the key: a page of another origin can have the browser send the cookie at most, never the token.
"""

import hashlib
import hmac
import os
import pathlib
import secrets
import stat
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from marin.errors import StorageError
from marin.site.browser.roots import KEY_NAME
from marin.web.guard import Refusal

QUERY = "key"
_OPEN_PATHS = ("/static/",)


class Access:
    """The key of one folder of runs, for a server on `port`."""

    def __init__(self, folder: pathlib.Path, port: int) -> None:
        self.key = _kept_key(folder / KEY_NAME)
        self._cookie = f"marin_datashop_{port}"
        self.token = hmac.new(self.key.encode(), b"form", hashlib.sha256).hexdigest()

    def rule(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Lets pass who brings the cookie, and who comes to the first page with anything as a key."""
        path = scope["path"]
        is_coming = path == "/" and scope["query_string"].startswith(f"{QUERY}=".encode())
        if is_coming or path.startswith(_OPEN_PATHS) or self.is_key(self._brought(headers)):
            return None
        return Refusal(
            401, "Open the address that `marin datashop` printed in the terminal: it holds the key to this page."
        )

    def is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.key.encode())

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def let_in(self, response: Response) -> Response:
        response.set_cookie(self._cookie, self.key, httponly=True, samesite="strict", path="/")
        return response

    def _brought(self, headers: Headers) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return cookie.value if cookie is not None else ""


def _kept_key(path: pathlib.Path) -> str:
    kept = _own_key(path)
    if kept is not None:
        return kept
    key = secrets.token_urlsafe(32)
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(key)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror}): use another folder with --prefix DIR, or mend its permissions"
        ) from None
    return key


def _own_key(path: pathlib.Path) -> str | None:
    """The key that stands there, if this person made it and nobody else can read it.

    Where others may write into the folder, one of them could else lay down a key that they know, or a link to one.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(number, "rb") as stream:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            return None
        kept = stream.read(1000).decode(errors="replace").strip()
    return kept if kept.isascii() and len(kept) >= 32 else None
