"""The web addresses that a submission may give, of its author's page and of its run's: http or https, and nothing that runs."""

import re

_ADDRESS = re.compile(r"https?://([\w.\-]+)(:\d+)?([/?#]\S*)?", re.IGNORECASE)
_WITHOUT_SCHEME = re.compile(r"[a-z0-9\-]+(\.[a-z0-9\-]+)+(:\d+)?([/?#][!-~]*)?", re.IGNORECASE | re.ASCII)


def host_of(text: str) -> str | None:
    """The host of a web address; None where the text is none."""
    found = _ADDRESS.fullmatch(text)
    return None if found is None else found[1]


def problem_of(text: str) -> str | None:
    """Why a text is no web address, and what is expected, as the end of a sentence about it; None where it is one."""
    if host_of(text) is not None:
        return None
    if _WITHOUT_SCHEME.fullmatch(text) and len(text) <= 80:
        return f"is no web address, as it does not say https:// in front: write https://{text}"
    return "is no web address: give one that begins with https://"
