"""The sandbox for submitted code, against code that tries to get out."""

import os
import pathlib
import shlex
import shutil
import socket
import subprocess
import sys

import pytest

from marin.errors import ConfigError
from marin.speedrun import sandbox


def _python(code: str, scratch: pathlib.Path, seconds: float = 60.0) -> sandbox.Finished:
    return sandbox.run([sys.executable, "-I", "-c", code], scratch, {}, seconds)


def test_sandbox_lets_code_write_its_scratch_directory_alone(scratch: pathlib.Path, tmp_path: pathlib.Path):
    code = f"""
import pathlib, sys
pathlib.Path("inside").write_text("x")
for place in {[str(tmp_path / "outside"), "/etc/marin-outside", "/var/tmp/marin-outside", str(pathlib.Path.home() / "outside")]}:
    try:
        pathlib.Path(place).write_text("x")
    except OSError:
        continue
    sys.exit(f"wrote {{place}}")
"""
    done = _python(code, scratch)
    assert done.status == 0, done.out
    assert (scratch / "inside").read_text() == "x" and not (tmp_path / "outside").exists()


def test_sandbox_has_no_network_and_no_other_process(scratch: pathlib.Path):
    with subprocess.Popen(["sleep", "60"]) as other:
        code = f"""
import os, socket, sys
try:
    os.kill({other.pid}, 0)
    sys.exit("sees another process")
except ProcessLookupError:
    pass
names = [name for _, name in socket.if_nameindex() if name != "lo"]
try:
    socket.create_connection(("127.0.0.1", 9), 1)
except OSError as error:
    sys.exit(0 if not names else f"has interfaces {{names}}")
"""
        done = _python(code, scratch)
        other.kill()
    assert done.status == 0, done.out


@pytest.mark.parametrize("way", ["plain", "linked", "relative"])
def test_sandbox_reaches_no_socket_on_which_a_program_outside_listens(
    way: str, scratch: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """By those of D-Bus, Docker and an SSH agent code would be run, or something signed, outside. SSH links what it shares to another name."""
    place = tmp_path / "a socket's place"
    with socket.socket(socket.AF_UNIX) as listening:
        bound = tmp_path / "bound" if way == "linked" else place
        monkeypatch.chdir(tmp_path)
        listening.bind(bound.name if way == "relative" else str(bound))
        listening.listen()
        if way == "linked":
            os.link(bound, place)
            bound.unlink()
        code = f"""
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect({str(place)!r})
except OSError as error:
    sys.exit(0)
sys.exit("reached it")
"""
        done = _python(code, scratch)
    assert done.status == 0, done.out


def test_sandbox_starts_however_many_sockets_there_are(scratch: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """As arguments of a command they would be too many."""
    monkeypatch.setattr(sandbox, "_sockets", lambda: [b"/nowhere/%d" % number for number in range(20_000)])
    done = _python("print('started')", scratch)
    assert (done.status, done.out) == (0, "started\n")


def test_of_what_code_prints_the_last_is_kept_however_much_it_is(scratch: pathlib.Path):
    done = _python("import sys\nfor k in range(10**6):\n    print(k)\nsys.exit(3)", scratch)
    assert done.status == 3 and done.out.endswith("\n999998\n999999\n") and len(done.out) == sandbox._MOST_KEPT


def test_sandbox_has_no_terminal_that_it_could_type_into(scratch: pathlib.Path):
    code = "open('/dev/tty')"
    run = f"from marin.speedrun import sandbox; print(sandbox.run([{sys.executable!r}, '-c', {code!r}], pathlib.Path({str(scratch)!r}), {{}}, 60.0))"
    command = f"import os, pathlib, pty\npid, end = pty.fork()\nif pid == 0:\n    {run}\n    os._exit(0)\n"
    command += "said = b''\ntry:\n    while part := os.read(end, 4096):\n        said += part\nexcept OSError:\n    pass\nprint(said.decode())"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert "Finished(status=1" in done.stdout and "No such device or address" in done.stdout, done.stdout + done.stderr


def test_what_closes_the_sandbox_cannot_be_taken_away_inside(
    scratch: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """By who makes mounts anew, or looks beneath them, in namespaces of the code's own too."""
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "key").write_text("PRIVATE")
    monkeypatch.setenv("HOME", str(home))
    tries = f"""
mkdir -p below
for place in / {shlex.quote(str(tmp_path))} /proc/sys /sys; do mount -o remount,bind,rw "$place"; done
umount {shlex.quote(str(home))}/.ssh; umount -l /dev
cat {shlex.quote(str(home))}/.ssh/key
touch {shlex.quote(str(outside))}
mount --bind / below && cat below{shlex.quote(str(home))}/.ssh/key
mount --rbind / below && mount -o remount,bind,rw below && touch below{shlex.quote(str(outside))}
"""
    command = ["bash", "-c", f"{tries}\nunshare --user --map-root-user --mount bash -c {shlex.quote(tries)}"]
    done = sandbox.run(command, scratch, {}, 60.0)
    assert not outside.exists() and "PRIVATE" not in done.out, done.out
    assert "ermission denied" in done.out, done.out


def test_sandbox_has_no_device_but_those_that_compute(scratch: pathlib.Path):
    """Not the terminal that a person types into, a disk, nor what stops other processes or changes the kernel's settings."""
    end, terminal = os.openpty()
    try:
        code = f"""
import os, pathlib
places = [{os.ttyname(terminal)!r}, *map(str, pathlib.Path("/dev").rglob("*")), "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"]
groups = [str(place) for place in pathlib.Path("/sys/fs/cgroup").rglob("cgroup.procs")]
for place in [*places, *groups[:200]]:
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_NOCTTY))
    except OSError:
        continue
    print(place)
"""
        done = _python(code, scratch)
    finally:
        os.close(end)
        os.close(terminal)
    opened = {
        place
        for place in done.out.split()
        if not place.startswith(("/dev/nvidia", "/dev/dri", "/dev/accel", "/dev/vfio", "/dev/dxg"))
    }
    assert done.status == 0, done.out
    assert opened - {"/dev/kfd", "/dev/fd", "/dev/stdin"} <= {
        f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")
    }


def test_what_code_prints_does_not_steer_the_terminal_that_shows_it(scratch: pathlib.Path):
    done = _python(r"print('one\ntwo \x1b[2K confirmed: \u202e')", scratch)
    assert done.out == "one\ntwo \\x1b[2K confirmed: \\u202e\n"


def test_sandbox_shows_neither_the_environment_nor_keys_in_the_home_directory(
    scratch: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("PRIVATE")
    (home / ".netrc").write_text("PRIVATE")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", "PRIVATE")
    code = f"""
import os, pathlib
home = pathlib.Path({str(home)!r})
print(sorted(os.environ), list((home / ".ssh").iterdir()), repr((home / ".netrc").read_text()))
"""
    done = _python(code, scratch)
    assert done.status == 0 and "PRIVATE" not in done.out and "HF_TOKEN" not in done.out
    assert "[] ''" in done.out
    assert (home / ".ssh" / "id_ed25519").read_text() == "PRIVATE"


def test_sandbox_kills_what_takes_too_long_with_all_that_it_started(scratch: pathlib.Path):
    seconds = f"4711.{os.getpid()}"  # no other test's
    code = f"import subprocess, time; subprocess.Popen(['sleep', '{seconds}']); time.sleep(600)"
    with pytest.raises(ConfigError, match="for more than 5 s"):
        _python(code, scratch, seconds=5.0)
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"sleep {seconds}" not in shown


def test_machine_without_namespaces_is_told_why(
    outside_ci: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="unshare"):
        sandbox.require()
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    with pytest.raises(ConfigError, match="Operation not permitted"):
        sandbox.require()


def test_a_machine_that_gives_no_namespaces_within_namespaces_is_told_of_before_anything_runs(
    scratch: pathlib.Path, outside_ci: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    refusing = tmp_path / "unshare"
    refusing.write_text(
        f'#!/bin/sh\nif [ -n "$WITHIN" ]; then echo "unshare failed: refused" >&2; exit 1; fi\nWITHIN=1 exec {shutil.which("unshare")} "$@"\n'
    )
    refusing.chmod(0o755)
    sandbox.require()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ConfigError, match="no namespaces .*refused"):
        sandbox.require()
