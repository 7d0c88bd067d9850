"""What git says of a checkout, or of a repository whose objects are data: nothing is checked out, and none of its hooks run."""

import os
import subprocess


def git_output(directory: str | os.PathLike[str], *arguments: str, seconds: float = 120.0) -> bytes | None:
    """What git prints, byte for byte; None where it cannot be asked, does not answer in time, or says no, as outside of a checkout."""
    try:
        # Whoever has git check signatures would have them said before each commit.
        command = ["git", "-C", os.fspath(directory), "-c", "log.showSignature=false", *arguments]
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def git(directory: str | os.PathLike[str], *arguments: str) -> str | None:
    """The same as text, without the end of its last line."""
    output = git_output(directory, *arguments)
    return None if output is None else output.decode(errors="replace").strip()
