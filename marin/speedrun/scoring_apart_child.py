"""The process that scores a run apart from its code; see `marin.speedrun.scoring_apart`.

python -P -m marin.speedrun.scoring_apart_child request.json
"""

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

from marin.data.tokenizer import Tokenizer
from marin.errors import MarinError, ResultsError
from marin.evaluation import EvalSet, Scorer, bits_per_byte_of, probe_validity
from marin.evaluation.exported import ExportedProgram
from marin.evaluation.training_tokens import TrainingSample
from marin.nn.precision import Precision
from marin.speedrun import strict_json
from marin.speedrun.scoring_apart import ABOUT_FILE, MAX_JSON_BYTES, About, Found, Request
from marin.tracking.run_record import require_fields
from marin.training import checkpoint as checkpoints
from marin.training.run_info import read_run_info, recorded_digest

_PREFIXES = ("model.", "average.")


def score(request: Request) -> Found:
    """Raises:
    MarinError: something that it needs is not there, is damaged, or is of another run.
    """
    checkpoint = checkpoints.find(request.checkpoint)
    if checkpoint.path != Path(request.checkpoint):  # one that lies in it, of whatever weights
        raise ResultsError(f"{request.checkpoint} is named like no checkpoint: it has none of its own")
    run = checkpoint.path.parents[1]
    info = read_run_info(run)
    if info is None:
        raise ResultsError(f"{run} has no run.json beside its checkpoints: it is not a whole training run")
    require_fields(info, run / "run.json", "precision")
    about = _about(Path(request.program) / ABOUT_FILE)
    tokenizer = Tokenizer.load(_in_store(about.tokenizer, request.store))
    if tokenizer.digest != recorded_digest(info, "tokenizer"):
        raise ResultsError(
            f"{about.tokenizer} is another tokenizer than the run's record says: it may have been changed"
        )
    eval_set = EvalSet.read(about.evaluation_set, _in_store(about.evaluation_documents, request.store))
    precision = Precision(info["precision"])
    program = ExportedProgram.read(Path(request.program))
    scorer = Scorer(program, program.arrays_of(checkpoint, about.prefix, precision), about.softcap, precision)
    length, rows = program.context_length, program.batch_size
    measured = bits_per_byte_of(scorer, eval_set, tokenizer, length, batch_size=rows)
    validity = probe_validity(
        scorer,
        eval_set,
        tokenizer,
        length,
        measured,
        batch_size=rows,
        seed=request.seed,
        training=TrainingSample.of_run(request.trained_in, info) or TrainingSample.of_run(run, info),
    )
    failed = {name: probe for name, probe in validity.probes.items() if not probe.passed}
    for name, probe in failed.items():
        print(f"the probe `{name}` failed: {probe.message}")
    num_parameters = sum(math.prod(shape.shape) for shape in program.shapes.values())
    held, _ = program.held()
    return Found(
        bits_per_byte=measured.value,
        levanter_bits_per_byte=measured.levanter,
        digest=measured.digest,
        context_length=length,
        num_parameters=num_parameters,
        held_bytes=held,
        flops_per_token=program.flops_per_token(),
        failed_probes=list(failed),
    )


def _about(path: Path) -> About:
    said = strict_json.read_json(path, MAX_JSON_BYTES)
    try:
        about = About(**said)
        texts = (about.tokenizer, about.evaluation_set, about.evaluation_documents)
        softcap = None if about.softcap is None else float(about.softcap)
        if about.prefix not in _PREFIXES or not all(isinstance(text, str) for text in texts):
            raise ValueError("a field is not what it should be")
    except (TypeError, ValueError) as error:
        raise ResultsError(f"{path} is not what an evaluation writes ({error})") from None
    return dataclasses.replace(about, softcap=softcap)


def _in_store(place: str, store: str) -> str:
    resolved = Path(place).resolve()
    if not resolved.is_relative_to(store):
        raise ResultsError(f"the program names {place!r}, which is not in the verifier's store")
    return str(resolved)


def main() -> int:
    request = Request(**strict_json.read_json(sys.argv[1], MAX_JSON_BYTES))
    try:
        found: Any = score(request)
    except MarinError as error:
        print(f"error: {error}")
        return 1
    Path(request.found).write_text(json.dumps(dataclasses.asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
