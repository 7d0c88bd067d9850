"""scripts/speedrun/onboarding_setup.sh against a repository on disk, with stand-ins for uv and gh; no network."""

import os
import pathlib
import pty
import pwd
import select
import shutil
import stat
import subprocess
import sys
import termios
import time

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts" / "speedrun" / "onboarding_setup.sh"

TEMPLATE = 'AUTHOR = ["__SUBMISSION_AUTHOR_NAME__", "__SUBMISSION_AUTHOR_AFFILIATION__", "__SUBMISSION_AUTHOR_URL__"]\n'

# `uv venv` makes a .venv whose python is this one; `uv sync` only notes its arguments.
FAKE_UV = f"""#!/bin/sh
echo "$@" >> "$HOME/uv.log"
if [ "$1" = venv ]; then
  mkdir -p .venv/bin
  printf '#!/bin/sh\\nPYTHONPATH={REPOSITORY} exec {sys.executable} "$@"\\n' > .venv/bin/python
  chmod +x .venv/bin/python
fi
"""


def _program(directory: pathlib.Path, name: str, text: str) -> None:
    (directory / name).write_text(text)
    (directory / name).chmod(stat.S_IRWXU)


@pytest.fixture
def origin(tmp_path: pathlib.Path) -> pathlib.Path:
    root = tmp_path / "origin"
    (root / "experiments" / "speedrun").mkdir(parents=True)
    (root / "experiments" / "speedrun" / "README.md").write_text("speedruns\n")
    (root / "experiments" / "hackable_transformer_starter_template.py").write_text(TEMPLATE)
    (root / "pyproject.toml").write_text('[project]\nname = "marin"\n')
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "start"]):
        subprocess.run([*git, *command], cwd=root, check=True)
    return root


@pytest.fixture
def programs(tmp_path: pathlib.Path) -> pathlib.Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    _program(directory, "uv", FAKE_UV)
    _program(directory, "nvidia-smi", "#!/bin/sh\nexit 9\n")
    _program(directory, "gh", "#!/bin/sh\nexit 1\n")
    return directory


@pytest.fixture
def environment(tmp_path: pathlib.Path, origin: pathlib.Path, programs: pathlib.Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Ada Lovelace\n\temail = ada@example.org\n")
    (tmp_path / "work").mkdir()
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1",
        "MARIN_REPO_URL": origin.as_uri(), "NO_PROMPT": "1", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def _run(environment: dict[str, str], cwd: pathlib.Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """As `curl ... | bash` does it: the script is standard input, and there is no terminal."""
    return subprocess.run(
        ["bash"], input=SCRIPT.read_text(), cwd=cwd, env={**environment, **variables}, start_new_session=True,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_setup_piped_clones_installs_and_starts_the_speedrun(
    tmp_path: pathlib.Path, environment: dict[str, str]
) -> None:
    done = _run(environment, tmp_path / "work", SUBMISSION_NAME="my-idea")
    assert done.returncode == 0, done.stderr
    made = tmp_path / "work" / "marin" / "experiments" / "speedrun" / "my_idea" / "main.py"
    assert made.read_text() == 'AUTHOR = ["Ada Lovelace", "Independent", None]\n'
    assert "--dry_run true" in done.stdout
    log = pathlib.Path(environment["HOME"], "uv.log").read_text().splitlines()
    assert log == ["venv --python 3.11", "sync --all-packages --inexact"]
    assert not (tmp_path / "work" / "marin" / ".env").exists()


@pytest.mark.parametrize("home", [{}, {"HOME": ""}], ids=["unset", "empty"])
def test_setup_without_a_home_takes_the_one_that_the_system_knows(
    home: dict[str, str], tmp_path: pathlib.Path, environment: dict[str, str]
) -> None:
    _program(tmp_path / "bin", "uv", FAKE_UV.replace('echo "$@" >> "$HOME/uv.log"', 'echo "uv has HOME $HOME"'))
    del environment["HOME"]
    done = _run(environment | home, tmp_path / "work")
    assert done.returncode == 0, done.stderr
    assert f"uv has HOME {pwd.getpwuid(os.getuid()).pw_dir}\n" in done.stdout


@pytest.mark.parametrize(("given", "status"), [("--help", 0), ("my_idea", 2)])
def test_setup_that_is_asked_for_help_or_given_a_name_says_so_and_does_nothing(
    given: str, status: int, tmp_path: pathlib.Path, environment: dict[str, str]
) -> None:
    done = subprocess.run(
        ["bash", SCRIPT, given], cwd=tmp_path / "work", env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status and list((tmp_path / "work").iterdir()) == []
    assert "SUBMISSION_NAME" in (done.stderr if status else done.stdout)


def test_setup_again_keeps_everything_and_succeeds(tmp_path: pathlib.Path, environment: dict[str, str]) -> None:
    _run(environment, tmp_path / "work", SUBMISSION_NAME="idea")
    made = tmp_path / "work" / "marin" / "experiments" / "speedrun" / "idea" / "main.py"
    made.write_text("mine = 1\n")
    for cwd in (tmp_path / "work", tmp_path / "work" / "marin" / "experiments"):
        done = _run(environment, cwd, SUBMISSION_NAME="idea")
        assert done.returncode == 0 and "is kept" in done.stdout
        assert made.read_text() == "mine = 1\n"
    assert not (tmp_path / "work" / "marin" / "experiments" / "marin").exists()


def test_setup_after_a_clone_that_was_cut_short_starts_it_over(
    tmp_path: pathlib.Path, environment: dict[str, str]
) -> None:
    (tmp_path / "work" / "marin.partial" / ".git").mkdir(parents=True)
    assert _run(environment, tmp_path / "work").returncode == 0
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["marin"]


def test_setup_without_a_name_says_how_to_go_on(tmp_path: pathlib.Path, environment: dict[str, str]) -> None:
    done = _run(environment, tmp_path / "work", MARIN_DIR="elsewhere")
    assert done.returncode == 0 and "marin init NAME" in done.stdout
    assert (tmp_path / "work" / "elsewhere" / "pyproject.toml").exists()


@pytest.mark.parametrize(
    ("driver", "extras", "flags"),
    [("580.65.06", None, "--extra=cuda13"), ("550.54", None, "--extra=cuda12"), ("470.1", None, ""),
     ("580.65.06", "none", ""), ("580.65.06", "cuda12,wandb", "--extra=cuda12 --extra=wandb")],
)  # fmt: skip
def test_setup_takes_the_extras_that_the_driver_or_the_user_says(
    driver: str,
    extras: str | None,
    flags: str,
    tmp_path: pathlib.Path,
    environment: dict[str, str],
    programs: pathlib.Path,
) -> None:
    _program(programs, "nvidia-smi", f"#!/bin/sh\necho {driver}\n")
    asked = {} if extras is None else {"MARIN_SETUP_EXTRAS": extras}
    assert _run(environment, tmp_path / "work", **asked).returncode == 0
    log = pathlib.Path(environment["HOME"], "uv.log").read_text().splitlines()
    assert log[-1] == f"sync --all-packages --inexact {flags}".strip()


def test_setup_with_gh_logged_in_forks_and_clones_the_fork(
    tmp_path: pathlib.Path, environment: dict[str, str], programs: pathlib.Path, origin: pathlib.Path
) -> None:
    _program(
        programs, "gh",
        f'#!/bin/sh\necho "$@" >> "$HOME/gh.log"\ncase "$1 $2" in "api user") echo ada;; "repo clone") git clone -q {origin} "$4";; esac\n',
    )  # fmt: skip
    del environment["MARIN_REPO_URL"]
    assert _run(environment, tmp_path / "work").returncode == 0
    log = pathlib.Path(environment["HOME"], "gh.log").read_text()
    assert "repo fork https://github.com/marin-community/marin --clone=false" in log and "repo clone ada/marin" in log
    assert (tmp_path / "work" / "marin" / "pyproject.toml").exists()


def test_setup_without_uv_uses_venv_and_pip_with_the_lock(
    tmp_path: pathlib.Path, environment: dict[str, str], programs: pathlib.Path, origin: pathlib.Path
) -> None:
    (programs / "uv").unlink()
    tools = tmp_path / "tools"  # everything but uv, wherever this machine has it
    tools.mkdir()
    for name in ("bash", "sh", "git", "grep", "ls", "mv", "rm", "rmdir", "head", "mkdir", "chmod", "env"):
        (tools / name).symlink_to(str(shutil.which(name)))
    environment["PATH"] = f"{programs}{os.pathsep}{tools}"
    _program(
        programs, "python3.11",
        "#!/bin/sh\n[ \"$1 $2\" = '-m venv' ] || exit 0\nmkdir -p .venv/bin\n"
        "printf '#!/bin/sh\\necho \"$@\" >> \"$HOME/pip.log\"\\n' > .venv/bin/python\nchmod +x .venv/bin/python\n",
    )  # fmt: skip
    (origin / "requirements.lock").write_text("")
    for command in (["add", "."], ["-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-qm", "lock"]):
        subprocess.run(["git", *command], cwd=origin, check=True)
    done = _run(environment, tmp_path / "work", MARIN_NO_UV_INSTALL="1", MARIN_SETUP_EXTRAS="cuda12 wandb")
    assert done.returncode == 0, done.stderr
    log = pathlib.Path(environment["HOME"], "pip.log").read_text().splitlines()
    assert log == ["-m pip install --quiet -r requirements.lock", "-m pip install --quiet -e .[cuda12,wandb]"]


@pytest.mark.parametrize("obstacle", ["a file", "another project", "no repository"])
def test_setup_that_cannot_clone_says_what_to_do(
    obstacle: str, tmp_path: pathlib.Path, environment: dict[str, str]
) -> None:
    if obstacle == "a file":
        (tmp_path / "work" / "marin").write_text("")
    elif obstacle == "another project":
        (tmp_path / "work" / "marin").mkdir()
        (tmp_path / "work" / "marin" / "pyproject.toml").write_text('[project]\nname = "other"\n')
    else:
        environment["MARIN_REPO_URL"] = (tmp_path / "nothing").as_uri()
    done = _run(environment, tmp_path / "work")
    assert done.returncode == 2 and "error: " in done.stderr and "again" in done.stderr


def test_setup_with_an_impossible_name_fails_with_init_s_message(
    tmp_path: pathlib.Path, environment: dict[str, str]
) -> None:
    done = _run(environment, tmp_path / "work", SUBMISSION_NAME="../evil")
    assert done.returncode == 2 and "cannot name a Python package" in done.stderr


def _converse(environment: dict[str, str], cwd: pathlib.Path, answers: list[tuple[str, str]]) -> tuple[int, str]:
    """Runs the script with a terminal of its own and types each answer when its question has appeared."""
    master, slave = pty.openpty()
    launch = (
        "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(1, termios.TIOCSCTTY, 0); os.execvp('bash', ['bash'])"
    )
    with open(SCRIPT) as script:
        process = subprocess.Popen(
            [sys.executable, "-c", launch], stdin=script, stdout=slave, stderr=slave, cwd=cwd, env=environment
        )
    os.close(slave)
    seen, answered, deadline = "", 0, time.monotonic() + 120
    while time.monotonic() < deadline:
        if answered < len(answers) and answers[answered][0] in seen[seen.rfind("\n") + 1 :]:
            if "key" in answers[answered][0] and termios.tcgetattr(master)[3] & termios.ECHO:
                time.sleep(0.01)  # the question is printed just before the echo is turned off
                continue
            os.write(master, f"{answers[answered][1]}\n".encode())
            answered += 1
        try:
            if select.select([master], [], [], 0.1)[0]:
                seen += os.read(master, 65536).decode()
        except OSError:  # the other end is closed
            break
    status = process.wait(timeout=10)
    os.close(master)
    return status, seen


def test_setup_at_a_terminal_asks_and_keeps_keys_privately_without_echo(
    tmp_path: pathlib.Path, environment: dict[str, str]
) -> None:
    del environment["NO_PROMPT"]
    answers = [("Weights & Biases key", "it's$s3cret"), ("Hugging Face key", ""), ("Name of your speedrun", "idea"),
               ("Your web page", ""), ("Your affiliation", "Analytical Society"), ("Your idea", "")]  # fmt: skip
    status, seen = _converse(environment, tmp_path / "work", answers)
    assert status == 0, seen
    kept = tmp_path / "work" / "marin" / ".env"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    loaded = subprocess.run(
        ["sh", "-c", '. "$0"; printf %s "$WANDB_API_KEY"', str(kept)], capture_output=True, text=True, check=True
    )
    assert loaded.stdout == "it's$s3cret" and "s3cret" not in seen
    made = tmp_path / "work" / "marin" / "experiments" / "speedrun" / "idea" / "main.py"
    assert made.read_text() == 'AUTHOR = ["Ada Lovelace", "Analytical Society", None]\n'
    done = _run(environment, tmp_path / "work" / "marin", SUBMISSION_NAME="idea")
    assert done.returncode == 0 and "kept in .env" in done.stdout and kept.read_text().count("\n") == 1
