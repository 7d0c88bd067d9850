"""Scoring a run where none of its code is: by the program that its evaluation wrote down, and Marin's own code for all else.

    {evaluation step}/program/activations.bin, head.bin    see `marin.evaluation.exported`
                              about.json                   `About`

`marin verify --evaluate` and `--rerun` have the submission's code write this in the sandbox. Nothing that it says counts: in another
process, which imports none of that code, the weights are read from the run's checkpoint, bytes and tokens are counted on
documents that are named by their digest, the tokenizer is that of the run's record, and the probes look where no author could know.
That process has a sandbox and a scratch directory of its own, since a stranger wrote what it reads.
"""

import dataclasses
import json
import pathlib
import secrets
import sys
import tempfile

import marin
from marin.errors import ResultsError
from marin.speedrun import sandbox, strict_json

PROGRAM_FOLDER, ABOUT_FILE = "program", "about.json"
WANTED = "MARIN_KEEP_PROGRAM"  # set for an evaluation that is to write its program down
MAX_JSON_BYTES = 2**20
_CHILD = "marin.speedrun.scoring_apart_child"
_SHOWN = 3_000


@dataclasses.dataclass(frozen=True)
class About:
    """What else scoring needs.

    Args:
        prefix: which arrays of the checkpoint the program is given: "model." or "average.".
        tokenizer, evaluation_documents: where they lie in the store.
    """

    prefix: str
    softcap: float | None
    tokenizer: str
    evaluation_set: str
    evaluation_documents: str


@dataclasses.dataclass(frozen=True)
class Request:
    """What the process that scores is told.

    Args:
        program: the folder that the evaluation wrote.
        store: the only place where `About` may name files.
        checkpoint: of the run in whose directory it lies.
        trained_in: where the run would lie in a store that has what it was trained on, which its record names from there.
        seed: of the probes.
        found: the file to write, a `Found`.
    """

    program: str
    store: str
    checkpoint: str
    trained_in: str
    seed: int
    found: str


@dataclasses.dataclass(frozen=True)
class Found:
    """What came out.

    Args:
        flops_per_token: at the least, of the forward pass.
    """

    bits_per_byte: float
    levanter_bits_per_byte: float
    digest: str
    context_length: int
    num_parameters: int
    held_bytes: int
    flops_per_token: float
    failed_probes: list[str]


def score_apart(
    program: pathlib.Path, store: pathlib.Path, checkpoint: pathlib.Path, trained_in: pathlib.Path, seconds: float
) -> Found:
    """Scores a checkpoint by a program that was written down, in a sandbox.

    Args:
        trained_in: as of a `Request`.
        seconds: after which it is given up.
    Raises:
        ConfigError: if it takes longer.
        ResultsError: if it cannot be scored; says why.
    """
    with tempfile.TemporaryDirectory(prefix="marin-apart-") as folder:
        scratch = pathlib.Path(folder).resolve()
        request = Request(
            program=str(program.resolve()),
            store=str(store.resolve()),
            checkpoint=str(checkpoint.absolute()),  # not where a link leads: the run's record lies beside it
            trained_in=str(trained_in.resolve()),
            seed=secrets.randbits(32),
            found=str(scratch / "found.json"),
        )
        asked = scratch / "request.json"
        asked.write_text(json.dumps(dataclasses.asdict(request)))
        environment = {
            "PYTHONPATH": str(pathlib.Path(marin.__file__).resolve().parents[1]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = sandbox.run([sys.executable, "-P", "-m", _CHILD, str(asked)], scratch, environment, seconds)
        if done.status:
            raise ResultsError(
                f"scored apart from the submission's code, the run has no figure (status {done.status}):\n{done.out[-_SHOWN:]}"
            )
        return Found(**strict_json.read_json(request.found, MAX_JSON_BYTES))
