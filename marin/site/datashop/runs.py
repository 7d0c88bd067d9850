"""Runs of the datashop as folders on disk, each worked on by a process of its own that outlives the page's server.

    {folder}/{id}/wish.json       what was filled in
    {folder}/{id}/config.py       the config that was made of it when the run was started
    {folder}/{id}/process.json    the process that was started last
    {folder}/{id}/stop.json       a person asked that process to stop
    {folder}/{id}/output.txt      what the processes printed
    {folder}/{id}/records/        the executor's record of the steps
    {folder}/{id}/trial.json      the prompt tried on a few documents

A run is `marin datashop run config.py`, so everything that holds for an experiment holds for it: finished stages are not run
again, and a stage that was stopped or killed goes on where it was. Nothing is known but what stands in these files and in the
outputs, so a server that is started again finds every run as it is.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from marin.errors import ConfigError
from marin.site.datashop.wishes import Wish, config_text
from marin.storage import files

OUTPUT, CONFIG, RECORDS = "output.txt", "config.py", "records"
_JSON_BYTES = 16_000_000
_ID = re.compile(r"[0-9a-f]{12}")
_WISH, _PROCESS, _STOP, _TRIAL = "wish.json", "process.json", "stop.json", "trial.json"


@dataclasses.dataclass(frozen=True)
class Run:
    """One run as it stood when it was read.

    Args:
        started: when its process was started last, in seconds since 1970; None for a draft.
        is_alive: whether that process is there.
        asked_to_stop: whether a person asked it to.
    """

    id: str
    folder: pathlib.Path
    wish: Wish
    changed: float
    started: float | None = None
    is_alive: bool = False
    asked_to_stop: bool = False

    @property
    def is_draft(self) -> bool:
        return self.started is None

    @property
    def title(self) -> str:
        return self.wish.name or "Untitled"


class Runs:
    """The runs below a folder.

    Args:
        prefix: of the outputs.
        command: what runs a config; its path and flags are appended.
    """

    def __init__(self, folder: pathlib.Path, prefix: str, command: Sequence[str] | None = None) -> None:
        self.folder, self.prefix = folder, prefix
        self._command = list(command or (sys.executable, "-m", "marin", "datashop", "run"))
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True)

    def all(self) -> list[Run]:
        """Those that changed last come first."""
        found = (self.get(path.name) for path in self.folder.iterdir())
        return sorted((run for run in found if run is not None), key=lambda run: -max(run.changed, run.started or 0))

    def get(self, number: str) -> Run | None:
        """The run with this id; None if there is none."""
        if not _ID.fullmatch(number):
            return None
        folder = self.folder / number
        wish = read_json(folder / _WISH)
        if not isinstance(wish, dict):
            return None
        changed = (folder / _WISH).stat().st_mtime
        process = _read_process(folder)
        if process is None:
            return Run(number, folder, Wish.from_json(wish), changed)
        return Run(
            number,
            folder,
            Wish.from_json(wish),
            changed,
            started=float(process["started"]),
            is_alive=self._is_alive(number, process),
            asked_to_stop=(folder / _STOP).exists(),
        )

    # Requests change runs at the same time, and some of them wait for a model meanwhile. So each change looks under the lock
    # at how the run stands then, and leaves alone what is gone or was started.

    def create(self, wish: Wish) -> Run:
        number = os.urandom(6).hex()
        with self._lock:
            files.write_json(str(self.folder / number / _WISH), wish.to_json())
        run = self.get(number)
        assert run is not None
        return run

    def update(self, number: str, change: Callable[[Wish], Wish]) -> Run | None:
        """Changes the wish of a draft, as it stands at this moment; None if it is gone or is a draft no longer.

        A run that was started keeps the wish that it was started with: copy it instead.
        """
        with self._lock:
            run = self.get(number)
            if run is None or not run.is_draft:
                return None
            wish = change(run.wish)
            files.write_json(str(run.folder / _WISH), wish.to_json())
            return dataclasses.replace(run, wish=wish)

    def remove(self, run: Run) -> None:
        """Forgets the run; its outputs stay, as other runs may use them. One that is gone already is no error.

        Raises:
            ConfigError: it is running.
        """
        with self._lock:
            now = self.get(run.id)
            if now is None:
                return
            if now.is_alive:
                raise ConfigError("The run is at work: stop it first.")
            shutil.rmtree(now.folder)

    # --- the process --------------------------------------------------------------------------------------------------

    def start(self, run: Run, settings: dict[str, Any] | None) -> None:
        """Starts the run, or lets one that ended go on. One that is at work is left alone.

        Args:
            settings: for the config of a draft, as its wish stands in `run`: if that was changed since, nothing is
                started; None keeps the config that is there.
        """
        with self._lock:
            now = self.get(run.id)
            if now is None or now.is_alive or (settings is not None and now.wish != run.wish):
                return
            config = run.folder / CONFIG
            if settings is not None:
                files.write_bytes(str(config), config_text(settings, str(config)).encode())
            (run.folder / _STOP).unlink(missing_ok=True)
            flags = ["--prefix", self.prefix, "--executor_info_base_path", str(run.folder / RECORDS)]
            with open(run.folder / OUTPUT, "ab") as output:
                # A session of its own: Ctrl-C where the server runs stops the server and no run.
                child = subprocess.Popen(
                    [*self._command, str(config), *flags],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=os.environ | {"PYTHONUNBUFFERED": "1"},
                )
            self._children[run.id] = child
            entry = {"pid": child.pid, "created": _created(child.pid), "started": time.time()}
            files.write_json(str(run.folder / _PROCESS), entry)

    def stop(self, run: Run, *, at_once: bool = False) -> None:
        """Asks the process to stop cleanly, so that it keeps what it can; at once it is killed with all its children."""
        with self._lock:
            process = _read_process(run.folder)
            if process is None or not self._is_alive(run.id, process):
                return
            files.write_json(str(run.folder / _STOP), {"asked": time.time()})
            with contextlib.suppress(ProcessLookupError):
                if at_once:
                    os.killpg(int(process["pid"]), signal.SIGKILL)
                else:
                    os.kill(int(process["pid"]), signal.SIGTERM)

    def _is_alive(self, number: str, process: dict[str, Any]) -> bool:
        """Whether the process that was started is there; another one may have got its number since."""
        child = self._children.get(number)
        if child is not None and child.pid == process["pid"]:
            return child.poll() is None
        created = _created(int(process["pid"]))
        return created is not None and abs(created - (process.get("created") or 0.0)) < 1.0

    # --- what is kept beside it ---------------------------------------------------------------------------------------

    def save_trial(self, run: Run, trial: dict[str, Any]) -> None:
        """Keeps the trial, unless the run is gone."""
        with self._lock:
            if self.get(run.id) is not None:
                files.write_json(str(run.folder / _TRIAL), trial)

    def trial(self, run: Run) -> dict[str, Any] | None:
        found = read_json(run.folder / _TRIAL)
        return found if isinstance(found, dict) else None


def _created(pid: int) -> float | None:
    """When the process began; None if there is none that still works."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None


def _read_process(folder: pathlib.Path) -> dict[str, Any] | None:
    """The process that was started last; None if there was none, or if it is not known any more."""
    found = read_json(folder / _PROCESS)
    is_whole = isinstance(found, dict) and all(isinstance(found.get(key), int | float) for key in ("pid", "started"))
    return found if is_whole else None


def read_json(path: pathlib.Path) -> Any:
    """What the file holds; None where there is none that can be read."""
    try:
        with open(path, "rb") as stream:
            return json.loads(stream.read(_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
