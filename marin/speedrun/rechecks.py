"""The two rungs that execute submitted code, in a sandbox: scoring a checkpoint again, and training again.

`reevaluate` puts the run's directory alone into an empty store and lets the submission's own evaluation step run there, by the
executor: its tokenizer and evaluation documents are made anew, so that only the weights are the author's. `rerun` trains from the
run's commit, in an empty store. Either leaves the model's program, which is then scored where none of that code is
(`marin.speedrun.scoring_apart`). Both take the code of the run's commit, with the submission's files over it. Of a run of the Time-to-GPT-2
pipeline, which claims CORE, `scripts.base_eval` scores the checkpoint, on a bundle of the verifier's own.

What data cannot be made without a network must be prepared: `--data PREFIX` names a store of the verifier's own, from which
everything but runs is copied.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import re
import secrets
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from marin.errors import CheckpointError, ConfigError, ResultsError
from marin.git import git_output
from marin.speedrun import sandbox, scoring_apart, strict_json, submitting
from marin.speedrun.arithmetic.scoring_cost import MORE_FLOPS
from marin.speedrun.evaluation_record import EVALUATION_FILE
from marin.speedrun.results import RunInfo, Validity
from marin.speedrun.verification import Submission
from marin.speedrun.verification.seeds import experiment_of
from marin.speedrun.verification.statements import Measured
from marin.tracking.run_record import MOST_HELD, RUN_FILE

_DATA = ("corpora", "raw", "tokenizers", "tokenized", "documents")
_MAX_EVALUATION_BYTES = 2**20
_MAX_RECORD_BYTES = 2**24  # of a run's record and of a checkpoint's manifest
_ARCHIVING = 600.0  # seconds
_SHOWN = 3_000
_MOST_NAMED = 5
_SAME = 1e-4  # of a score, relative: one program in two processes
# Times what a process of the run says that its program holds: it is packed otherwise where it was written down.
_AS_HELD = 2
# Times a forward pass, what training takes at the least: three, less what a model may leave out in training alone, such as layers.
_OF_FORWARD = 2


@dataclasses.dataclass(frozen=True)
class Workspace:
    """A scratch directory with the code to run and a store.

    Args:
        data: the verifier's own store, which no code of the submission has written; None without one.
    """

    scratch: pathlib.Path
    name: str
    seconds: float
    data: pathlib.Path | None = None

    @property
    def code(self) -> pathlib.Path:
        return self.scratch / "code"

    @property
    def store(self) -> pathlib.Path:
        return self.scratch / "store"

    def variables(self, run_names: Iterable[str], seeds: Iterable[int]) -> dict[str, str]:
        """What makes the experiment take these sizes and seeds: those variables of the template's that its file reads.

        A size stands in the name of a run, as the template names it: `my_idea_300m`, `my_idea_300m_seed1`.
        """
        text = (self.code / "experiments" / "speedrun" / self.name / "main.py").read_text(errors="replace")
        size = re.compile(rf"{re.escape(self.name)}_(?!seed\d+$)(\w+?)(?:_seed\d+)?", re.ASCII)
        sizes = dict.fromkeys(found[1] for run_name in run_names if (found := size.fullmatch(run_name)))
        said = {"SR_SIZES": ",".join(sizes), "SR_SEEDS": ",".join(map(str, seeds))}
        return {name: value for name, value in said.items() if value and name in text}

    def run(self, *flags: str, **variables: str) -> str:
        """Runs the experiment's `main` in the sandbox and returns what it printed.

        Raises:
            ConfigError: if it fails; with the end of what it printed.
        """
        return self.run_module(
            f"experiments.speedrun.{self.name}.main", "--prefix", str(self.store), *flags, **variables
        )

    def run_module(self, module: str, *flags: str, **variables: str) -> str:
        """The same for any module of the code."""
        environment = {
            "PYTHONPATH": str(self.code),
            # Where the probes look follows from the measured figure, which an author can change until they miss.
            "MARIN_PROBE_SEED": str(secrets.randbits(32)),
            scoring_apart.WANTED: "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "WANDB_MODE": "disabled",
            **variables,
        }
        # The code lies where it was written, so that paths in it are short of the scratch directory's own name.
        command = [
            "sh",
            "-c",
            f'cd "{self.code}" && exec "$@"',
            "sh",
            sys.executable,
            "-m",
            module,
            *flags,
        ]
        done = sandbox.run(command, self.scratch, environment, self.seconds)
        if done.status:
            raise ConfigError(f"{module} ended with status {done.status} in the sandbox:\n{done.out[-_SHOWN:]}")
        return done.out


def prepare(
    submission: Submission, repository: pathlib.Path, data: pathlib.Path | None, scratch: pathlib.Path, seconds: float
) -> Workspace:
    """The code of the run's commit with the submission over it, and a store without runs.

    Raises:
        ConfigError: if the commit is not known here, or the submission has no `main.py`.
    """
    commit, name = submission.runs[0].git_commit, submission.directory.resolve().name
    if not (submission.directory / "main.py").is_file() and all(run.core is None for run in submission.runs):
        raise ConfigError(f"{submission.directory} has no main.py to run")
    if commit is None or not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ConfigError("the results name no commit, so there is no code to run again")
    workspace = Workspace(scratch, name, seconds, data)
    archive = scratch / "code.tar"
    if git_output(repository, "archive", "--format=tar", "-o", str(archive), commit, seconds=_ARCHIVING) is None:
        raise ConfigError(
            f"commit {commit} is not in {repository}: fetch the author's branch (git fetch URL BRANCH), then try again"
        )
    with tarfile.open(archive) as packed:
        packed.extractall(workspace.code, filter="data")
    archive.unlink()
    target = workspace.code / "experiments" / "speedrun" / name
    for source in sorted(submission.directory.glob("*.py")):
        if source.is_file() and not source.is_symlink():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target / source.name)
    workspace.store.mkdir()
    for part in _DATA if data is not None else ():
        if data is not None and (data / part).is_dir():
            shutil.copytree(data / part, workspace.store / part)
    return workspace


def warning_of_own_framework(repository: pathlib.Path, commit: str | None) -> str | None:
    """What whoever runs a submission must know whose commit changes Marin itself, which then measures its own run; None where it does not.

    Args:
        repository: the clone; its branch is what the commit is held against, from where the two parted.
    """

    def git(*arguments: str) -> list[str]:
        return (git_output(repository, *arguments) or b"").decode("utf-8", "replace").splitlines()

    base = (git("merge-base", "HEAD", str(commit)) or ["HEAD"])[0]
    changed = git("diff", "--name-only", base, str(commit), "--", "marin", "scripts")
    if not changed:
        return None
    more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
    return (
        f"warning: the run's commit changes Marin itself, by which it is measured here too ({', '.join(changed[:_MOST_NAMED])}{more}):"
        f" before you sign, read git diff {base[:12]} {str(commit)[:12]} -- marin scripts"
    )


def reevaluate(
    submission: Submission, run_directory: pathlib.Path, workspace: Workspace, bundle: pathlib.Path | None = None
) -> list[Measured]:
    """Scores the run's checkpoint again; the run is that of the submission whose log the directory has.

    Args:
        bundle: CORE's data, for a run that claims CORE.
    Raises:
        ConfigError: if the directory's run is not of the submission, its checkpoint is damaged, or its step would train rather than
            score.
    """
    if not (run_directory / RUN_FILE).exists():
        raise ConfigError(f"{run_directory} has no {RUN_FILE}: {submitting.RUN_DIRECTORY}")
    content = strict_json.read_limited(str(run_directory / RUN_FILE), _MAX_RECORD_BYTES)
    number = next((k for k, log in enumerate(submission.logs) if log is not None and log.run == content), None)
    if number is None:
        raise ConfigError(f"{run_directory} is no run of the submission: its run.json is none of those in logs/")
    checkpoint = _last_checkpoint(submission.runs[number], run_directory)
    if checkpoint is not None:
        _check_is_whole(checkpoint, run_directory)
    ignored = _all_but(checkpoint)
    if submission.runs[number].core is not None:
        return [_core_again(submission.runs[number], number, run_directory, workspace, bundle, ignored)]
    run_name = submitting.run_name_of(content) or ""
    _copy(run_directory, workspace.store / "checkpoints" / "speedrun" / run_directory.resolve().name, ignored)
    step = f"evaluation/speedrun/{run_name}"
    only = json.dumps([f"^{re.escape(step)}$"])
    variables = workspace.variables([run_name], [submission.runs[number].seed or 0])
    plan = workspace.run("--dry_run", "true", "--run_only", only, **variables)
    training = re.findall(
        rf"^(would \w+(?: \w+)?) +checkpoints/speedrun/{re.escape(run_name)}: (.*)$", plan, re.MULTILINE
    )
    if not training or training[0][0] != "would skip":
        reason = training[0][1] if training else "the experiment has no such step"
        raise ConfigError(
            f"the checkpoint would not be taken as it is ({reason}): is this the run of that code and config?"
        )
    print("the submission's code scores the checkpoint ...", flush=True)
    workspace.run("--run_only", only, **variables)
    found = sorted(workspace.store.glob(f"{step}-*/{EVALUATION_FILE}"))
    if len(found) != 1:
        raise ResultsError(f"the evaluation step left {len(found)} files {EVALUATION_FILE}, expected 1")
    said = strict_json.read_json(found[0], _MAX_EVALUATION_BYTES)
    claim = submission.runs[number]
    try:
        evaluation, validity = said["evaluation"], said.get("validity")
        measured = Measured(
            run=number,
            bits_per_byte=evaluation["levanter_bits_per_byte" if claim.c4_en_bpb is not None else "bits_per_byte"],
            evaluation_digest=evaluation["digest"],
            seed=claim.seed,
            failed_probes=_failed_probes(None if validity is None else Validity(**validity)),
            replaced=evaluation.get("replaced") or None,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"the evaluation step's {EVALUATION_FILE} has not what it should ({error})") from None
    apart = _scored_apart(found[0], run_directory, claim, claim, measured, workspace)
    # The code that was replaced has made the program, and had no part in scoring it.
    return [apart if apart.by_submission else apart.model_copy(update={"replaced": None})]


def _scored_apart(
    evaluation: pathlib.Path,
    run_directory: pathlib.Path,
    info: RunInfo,
    claim: RunInfo,
    measured: Measured,
    workspace: Workspace,
) -> Measured:
    """What the submission's code measured, with figures that none of it had a part in; said so where there are none.

    Args:
        evaluation: the file beside which its evaluation step has written the program that it scored.
        info: of the run in that directory, whose `digests` name its checkpoint.
        claim: what its program may not exceed; another run's where it was trained again, as that run's own results may say anything.
    """
    program, checkpoint = evaluation.parent / scoring_apart.PROGRAM_FOLDER, None
    if (program / scoring_apart.ABOUT_FILE).is_file():
        checkpoint = _last_checkpoint(info, run_directory)
    if checkpoint is None:
        print(
            "warning: the run left no program, or its log names no checkpoint, so that it could not be scored apart from the submission's"
            " code: the figures are those of the process that ran that code",
            file=sys.stderr,
        )
        return measured.model_copy(update={"by_submission": True})
    print(f"what it wrote down is scored apart from it (seed {info.seed or 0}) ...", flush=True)
    trained_in = (workspace.data or workspace.store) / "checkpoints" / "speedrun" / run_directory.resolve().name
    found = scoring_apart.score_apart(program, workspace.store, checkpoint, trained_in, workspace.seconds)
    value = found.bits_per_byte if claim.c4_en_bpb is None else found.levanter_bits_per_byte
    said = measured.bits_per_byte
    if said is None or not math.isclose(value, said, rel_tol=_SAME):
        print(
            f"warning: the submission's code says {said} bits per byte, scored apart from it the run has {value}",
            file=sys.stderr,
        )
    _hold(found, claim)
    failed = sorted({*(measured.failed_probes or ()), *found.failed_probes})
    update = {"bits_per_byte": value, "evaluation_digest": found.digest, "failed_probes": failed or None}
    return measured.model_copy(update=update)


def _hold(found: scoring_apart.Found, claim: RunInfo) -> None:
    """Raises:
    ResultsError: the program is more than the results say, or more than their hardware could compute in their time.
    """
    evaluation = claim.evaluation
    for what, own, stated in (
        ("reads tokens at once", found.context_length, evaluation and evaluation.context_length),
        ("is given parameters", found.num_parameters, claim.model_size),
    ):
        if stated not in (None, own):
            raise ResultsError(f"the run's program {what}: {own:,}, its results say {stated:,}")
    held = (evaluation and evaluation.held_bytes) or 0
    if found.held_bytes > max(MOST_HELD, _AS_HELD * held):
        raise ResultsError(
            f"the run's program holds {found.held_bytes:,} bytes that are no parameters, its results say {held:,}: they may be of the"
            " evaluation set"
        )
    flops, stated_flops = found.flops_per_token, evaluation and evaluation.flops_per_token
    if stated_flops and flops > MORE_FLOPS * stated_flops:
        print(
            f"warning: by the shapes of its products the run's program takes {flops:.4g} FLOPs a token, its results say {stated_flops:.4g}: read"
            " what it computes when it is scored (experts by `ragged_dot` are all computed on a CPU)",
            file=sys.stderr,
        )
    trained = _OF_FORWARD * flops * (claim.total_tokens or 0)
    if claim.training_hardware_flops and trained > claim.training_hardware_flops:
        raise ResultsError(
            f"the run's program takes {flops:.4g} FLOPs a token, so that its {claim.total_tokens:,} tokens took at least {trained:.4g} to"
            f" train; its hardware could do {claim.training_hardware_flops:.4g} in the time that the results say"
        )


def _failed_probes(validity: Validity | None) -> list[str] | None:
    """What the author's own results say of probes may be edited; None where all passed, or the code knows none."""
    return None if validity is None else validity.failed or None


def _core_again(
    info: RunInfo,
    number: int,
    run_directory: pathlib.Path,
    workspace: Workspace,
    bundle: pathlib.Path | None,
    ignored: Any,
) -> Measured:
    if bundle is None:
        raise ConfigError(
            "this run claims CORE: give its data with --eval-bundle DIR (python -m scripts.eval_bundle fetches it)"
        )
    tag = run_directory.resolve().name
    copy, tokenizer = workspace.store / "base_checkpoints" / tag, run_directory.resolve().parents[1] / "tokenizer"
    stated = info.digests.tokenizer if info.digests else None
    found = tokenizer / "tokenizer.json"
    if not found.is_file() or hashlib.sha256(found.read_bytes()).hexdigest() != stated:
        raise ConfigError(
            f"{found} is not the run's tokenizer: keep the run's directory as BASE/base_checkpoints/{tag}, beside BASE/tokenizer"
        )
    _copy(run_directory, copy, ignored)
    _copy(tokenizer, workspace.store / "tokenizer")
    flags = ("--base-dir", str(workspace.store), "--model-tag", tag, "--eval", "core", "--eval-bundle", str(bundle))
    workspace.run_module("scripts.base_eval", *flags)
    (place,) = sorted(workspace.store.glob(f"base_eval/{tag}_*/core.json")) or (None,)
    if place is None:
        raise ResultsError("scripts.base_eval left no core.json")
    said = strict_json.read_json(place, _MAX_EVALUATION_BYTES)
    try:
        if said["core_metric"] is None:
            raise ConfigError(f"{bundle} is not all of CORE: " + "; ".join(map(str, said["incomplete"]))[:_SHOWN])
        return Measured(run=number, core=said["core_metric"], seed=info.seed)
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"scripts.base_eval's core.json has not what it should ({error})") from None


def _last_checkpoint(info: RunInfo, run_directory: pathlib.Path) -> pathlib.Path | None:
    """The checkpoint that the run's log ends with; None where the log is from before one was named.

    Raises:
        ConfigError: if it is not there: other weights in its place would be scored instead.
    """
    stated = info.digests.checkpoint if info.digests else None
    if stated is None:
        return None
    for manifest in sorted((run_directory / "checkpoints").glob("step-*/manifest.json")):
        content = strict_json.read_limited(str(manifest), _MAX_RECORD_BYTES)
        if hashlib.sha256(content).hexdigest() == stated:
            return manifest.parent
    raise ConfigError(
        f"{run_directory} does not hold the checkpoint that the log ends with, {stated[:16]}...: ask the author for the run's directory as"
        " training left it"
    )


def _check_is_whole(checkpoint: pathlib.Path, run_directory: pathlib.Path) -> None:
    """Looked at here, as the sandbox would speak of its own copy.

    Raises:
        ConfigError: naming the first file that is not what training wrote.
    """
    from marin.training.checkpoint_manifest import SEAL, verify_files

    try:
        if not (checkpoint / SEAL).is_file():  # a pipe would be waited for
            raise CheckpointError(f"{checkpoint / SEAL} is missing")
        verify_files(checkpoint, int(checkpoint.name.removeprefix("step-")))
    except CheckpointError as error:
        raise ConfigError(
            f"the checkpoint that the log ends with is damaged: {error}\ncopy {run_directory} again from where the run was trained, or ask"
            " its author for it"
        ) from None


def _copy(source: pathlib.Path, target: pathlib.Path, ignored: Any = None) -> None:
    """Raises:
    ConfigError: naming what cannot be copied, such as a pipe.
    """
    try:
        shutil.copytree(source, target, symlinks=True, ignore=ignored)
    except shutil.Error as error:
        reasons = "; ".join(str(reason) for _, _, reason in error.args[0][:_MOST_NAMED])
        raise ConfigError(f"{source} cannot be copied: {reasons}") from None


def _all_but(checkpoint: pathlib.Path | None) -> Callable[[str, list[str]], list[str]] | None:
    """For `shutil.copytree`: leaves out all other checkpoints, as one that is damaged would be passed over for an older one."""
    if checkpoint is None:
        return None
    return lambda folder, names: (
        [name for name in names if name != checkpoint.name] if pathlib.Path(folder) == checkpoint.parent else []
    )


def rerun(submission: Submission, num_seeds: int, workspace: Workspace) -> list[Measured]:
    """Trains again: the first claimed seed for one run, else so many seeds that are not claimed yet.

    What comes out is measured against the first claimed run of its experiment.

    Raises:
        ConfigError: if several seeds are asked for and the experiment takes none.
        ResultsError: if it leaves other runs than those that were asked for.
    """
    claimed = [run.seed or 0 for run in submission.runs]
    first = claimed[0] if num_seeds == 1 else max(claimed) + 1
    seeds = range(first, first + num_seeds)
    names = ["" if log is None else submitting.run_name_of(log.run) or "" for log in submission.logs]
    variables = workspace.variables(filter(None, names), seeds)
    if num_seeds > 1 and "SR_SEEDS" not in variables:
        raise ConfigError(
            "the experiment does not read SR_SEEDS, as the template does: it can be run again with its own seed, --rerun 1"
        )
    others = [] if "SR_SEEDS" in variables else _leaving_out(names, claimed, first)
    print(f"the submission's code trains with seed {', '.join(map(str, seeds))} ...", flush=True)
    workspace.run("--force_run_failed", "true", *others, **variables)
    runs = submitting.find_runs(workspace.store, workspace.name).runs
    if not runs:
        raise ResultsError("the experiment ended without results")
    measured = [_measured(run, submission.runs, workspace) for run in runs]
    for number in sorted({item.run for item in measured}) if num_seeds > 1 else ():
        found = sorted(item.seed or 0 for item in measured if item.run == number)
        if found != list(seeds):
            raise ResultsError(
                f"the experiment was asked for the seeds {variables['SR_SEEDS']} and left runs of {', '.join(map(str, found))}"
            )
    return measured


def _leaving_out(names: Sequence[str], seeds: Sequence[int], seed: int) -> list[str]:
    """Flags by which an experiment that has its seeds written down trains those of one seed alone; none where all are of it."""
    wanted = [name for name, own in zip(names, seeds, strict=True) if own == seed]
    if len(wanted) == len(names) or not all(wanted):
        return []
    return ["--run_only", f"^speedrun/({'|'.join(map(re.escape, wanted))})-speedrun_results$"]


def _measured(run: submitting.FoundRun, claimed: Sequence[RunInfo], workspace: Workspace) -> Measured:
    if run.info.quality is None:
        raise ResultsError(f"the run {run.name} was not scored")
    experiments = [experiment_of(info) for info in claimed]
    number = 0
    if len(set(experiments)) > 1:  # one file of several sizes
        own = experiment_of(run.info)
        if own not in experiments:
            raise ResultsError(
                f"the run {run.name} is of a config that no claimed run has: is this the code of the claim?"
            )
        number = experiments.index(own)
    measured = Measured(
        run=number,
        bits_per_byte=run.info.quality,
        evaluation_digest=run.info.evaluation.digest if run.info.evaluation else None,
        training_time=run.info.training_time,
        seed=run.info.seed,
        failed_probes=_failed_probes(run.info.validity),
        replaced=(run.info.evaluation.replaced if run.info.evaluation else None) or None,
    )
    evaluation = run.evaluation or run.directory / EVALUATION_FILE  # where there is none, nothing lies beside it
    return _scored_apart(evaluation, run.directory, run.info, claimed[number], measured, workspace)
