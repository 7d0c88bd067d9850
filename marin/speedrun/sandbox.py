"""Where submitted code may run: Linux namespaces by `unshare`, with one writable directory.

Inside there is no network, no other process to see or signal, every mounted file system is read-only but the scratch directory,
and the usual places of keys and tokens in the home directory are empty. Sockets on which programs outside listen, such as those of D-Bus,
Docker and an SSH agent, are covered, and there is no terminal: each would run what it is told outside. Of devices there are those that only
compute or give bytes, and control groups, by which processes outside could be stopped, are read-only too. The environment holds nothing of
the caller's but the path. What it does not do: other files that the user may read can be read, the processor, memory and disk are not limited, and a
fault of the kernel is a way out. Where namespaces are not to be had nothing runs.
"""

import concurrent.futures
import contextlib
import dataclasses
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from marin.errors import ConfigError
from marin.speedrun.verification.texts import printable

ISOLATION = (
    "no network; no other processes, sockets, terminals or disks; every file system read-only but the scratch directory; keys and tokens in the home directory"
    " hidden; an empty environment. Other files can be read, and processor, memory and disk are not limited."
)
_SECRET_PLACES = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config", ".netrc", ".git-credentials", ".kaggle", ".cache/huggingface",
    ".huggingface", ".pypirc", ".npmrc", ".local/share/keyrings",
)  # fmt: skip
# Accelerators among them. No terminal but that which a process was given (`tty`; here none), as keys could be read there, nor disks, which root,
# as the user of many a rented machine is, could write.
_DEVICES = (
    "null", "zero", "full", "random", "urandom", "tty", "nvidia*", "dri", "kfd", "accel*", "vfio", "dxg",
)  # fmt: skip
_MOST_KEPT = 2**18  # bytes of what is printed
# $1 scratch, $2 home, the rest is the command. A mount that no path leads to, or that its user may not look into, needs no change.
_ENTER = """
set -e
scratch="$1"; home="$2"; shift 2
mount --make-rprivate /
mount --bind "$scratch" "$scratch"
empty="$(mktemp -d -p "$scratch")"; : > "$empty/file"; mkdir "$empty/folder"
for place in PLACES; do
  if [ -d "$home/$place" ]; then mount --bind "$empty/folder" "$home/$place"
  elif [ -e "$home/$place" ]; then mount --bind "$empty/file" "$home/$place"; fi
done
while read -r -d '' place; do
  if [ -S "$place" ]; then mount --bind "$empty/file" "$place"; fi
done < "$scratch/SOCKETS"
devices="$empty/devices"; mkdir "$devices"; mount -t tmpfs -o mode=755 tmpfs "$devices"
for device in DEVICES; do
  if [ -d "$device" ]; then mkdir "$devices/${device#/dev/}"
  elif [ -e "$device" ]; then : > "$devices/${device#/dev/}"
  else continue; fi
  mount --rbind "$device" "$devices/${device#/dev/}"
done
ln -s /proc/self/fd "$devices/fd"
mkdir "$devices/shm"; mount -t tmpfs tmpfs "$devices/shm"
mount -n --move "$devices" /dev  # where mounts are written down nobody but root may write
writable=()
while read -r _ place _; do
  place="$(printf '%b' "$place")"
  case "$place" in "$scratch"|/proc|/proc/*|/dev|/dev/*) ;; *) mount -o remount,bind,ro "$place" 2>/dev/null || writable+=("$place");; esac
done < /proc/self/mounts
for place in "${writable[@]}"; do
  if mountpoint -q "$place"; then echo "the sandbox is not closed: $place cannot be made read-only" >&2; exit 97; fi
done
if touch "$home/.marin-sandbox-check" 2>/dev/null; then rm -f "$home/.marin-sandbox-check"; echo "the sandbox is not closed" >&2; exit 97; fi
for place in bus fs irq sys sysrq-trigger; do
  if [ -e "/proc/$place" ]; then mount --bind "/proc/$place" "/proc/$place"; mount -o remount,bind,ro "/proc/$place"; fi
done
cd "$scratch"
# Who has made mounts may take them away again: in namespaces of its own, inside these, the command finds them locked.
exec unshare --user --map-root-user --mount -- "$@"
"""


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a command ended, and the last of what it printed."""

    status: int
    out: str


def require() -> None:
    """Raises:
    ConfigError: if submitted code must not run here: in CI, or where there is no sandbox; says why.
    """
    if os.environ.get("CI"):
        raise ConfigError(
            "the environment says CI: submitted code never runs there; run the same command on a machine of your own, with CI unset"
        )
    if sys.platform != "linux" or shutil.which("unshare") is None:
        raise ConfigError(
            "submitted code runs only in a sandbox, which needs Linux and `unshare` (util-linux): use such a machine"
        )
    within = ["unshare", "--user", "--map-root-user", "--mount", "--", "true"]  # as the command's own
    done = subprocess.run([*_unshare(), *within], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"submitted code runs only in a sandbox, and this machine gives no namespaces ({done.stderr.strip()[:200]}): allow"
            " unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1), or use another machine"
        )


def run(command: Sequence[str], scratch: pathlib.Path, environment: Mapping[str, str], seconds: float) -> Finished:
    """Runs a command in the sandbox, in `scratch`, the one directory that it can write.

    Raises:
        ConfigError: if it takes longer than `seconds`; it is killed with all that it started.
    """
    home = pathlib.Path.home()
    if scratch.is_relative_to(home) and any(scratch.is_relative_to(home / place) for place in _SECRET_PLACES):
        raise ConfigError(f"the scratch directory {scratch} lies in a hidden place: set TMPDIR to another")
    own_home = scratch / "home"
    own_home.mkdir(exist_ok=True)
    given = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(own_home), "TMPDIR": str(scratch), **environment}
    # In a file, as there may be more than a command's arguments have room for.
    with tempfile.NamedTemporaryFile(dir=scratch, prefix="sockets-") as sockets:
        sockets.write(b"".join(place + b"\0" for place in _sockets()))
        sockets.flush()
        words = {
            "PLACES": " ".join(_SECRET_PLACES),
            "SOCKETS": pathlib.Path(sockets.name).name,
            "DEVICES": " ".join(f"/dev/{name}" for name in _DEVICES),
        }
        script = _ENTER
        for word, value in words.items():
            script = script.replace(word, value)
        with subprocess.Popen(
            [*_unshare(), "bash", "-c", script, "sandbox", str(scratch), str(home), *command],
            env=given, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        ) as process, concurrent.futures.ThreadPoolExecutor(1) as reader:  # fmt: skip
            said = reader.submit(_last_of, process.stdout)
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                raise ConfigError(
                    f"the submitted code ran for more than {seconds:,.0f} s: give a larger --timeout"
                ) from None
            finally:
                process.kill()  # all that it started ends with it
            # It is shown to a person, whose terminal it could have say something else.
            out = said.result().decode(errors="replace")
    return Finished(status, "\n".join(map(printable, out.split("\n"))))


def _last_of(pipe: Any) -> bytes:
    """The last of what is printed, however much it is."""
    kept = b""
    while part := pipe.read1(2**16):
        kept = (kept + part)[-_MOST_KEPT:]
    return kept


def _sockets() -> list[bytes]:
    """Where programs of this machine listen in the file system: a socket is connected to also where all is read-only.

    The kernel says what a place was called when it was bound. One may be named otherwise in the same folder since, as SSH's for further
    sessions is, or be named from where its process was.
    """
    lines = pathlib.Path("/proc/net/unix").read_bytes().split(b"\n")[1:]
    named = {
        fields[7] for line in lines if len(fields := line.split(maxsplit=7)) == 8 and not fields[7].startswith(b"@")
    }
    inside = {os.path.join(start, name) for start in _working_directories() for name in named}
    return sorted(inside | {place for folder in set(map(os.path.dirname, inside)) for place in _sockets_in(folder)})


def _working_directories() -> set[bytes]:
    """Those of the processes that this one may look at."""
    found = {b"/"}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.add(os.fsencode(os.readlink(process / "cwd")))
    return found


def _sockets_in(folder: bytes) -> list[bytes]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        # Known of all without asking for each, as folders of temporary files may be long.
        others = [
            entry
            for entry in entries
            if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False)
        ]
        return [entry.path for entry in others if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)]
    return []


def _unshare() -> list[str]:
    return [
        "unshare",
        "--user",
        "--map-root-user",
        "--net",
        "--ipc",
        "--uts",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
