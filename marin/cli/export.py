"""`marin export`: a run's model as a folder that transformers and other programs load."""

import argparse
from pathlib import Path

HELP = """\
Write a run's model in Hugging Face's layout: config.json, safetensors and the tokenizer.

RUN is a run's output directory, of which the newest whole checkpoint is taken, or one of its checkpoints/step-*. Where the
run keeps an average of its weights, that is what is written, as it is what evaluation scores. DIR must not be there yet.
Models with the parameters and config fields of Llama can be exported; others are refused with what they have more."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("dir", metavar="DIR")
    parser.add_argument(
        "--dtype", default="float32", metavar="FORMAT", help="float32, which keeps every bit (default), or bfloat16"
    )
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="a tokenizer.json, or a directory with one; default: the run's"
    )


def run(args: argparse.Namespace) -> int:
    from marin.models.hf_config import config_from_json
    from marin.models.hf_export import export_parameters
    from marin.models.hf_files import refuse_occupied
    from marin.tracking import RunRecord
    from marin.training import checkpoint as checkpoints
    from marin.training.run_paths import recorded_path

    folder = Path(args.dir)
    refuse_occupied(folder)
    found = checkpoints.find(args.run)
    run = found.path.parents[1]
    opened = RunRecord.open(run)
    opened.require("config.model", "config.tokenizer")
    record = opened.info
    config = config_from_json(record["config"]["model"])
    parameters = checkpoints.read_arrays(found, "average.") or checkpoints.read_arrays(found, "model.")
    tokenizer = args.tokenizer or recorded_path(str(record["config"]["tokenizer"]), run)
    export_parameters(parameters, config, tokenizer, folder, step=found.step, dtype=args.dtype)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: step {found.step:,}, {len(parameters)} arrays as {args.dtype}, {size / 1e6:,.1f} MB")
    kind = record.get("model_class")
    if kind != "marin.models.llama:LlamaConfig":
        print(
            f"note: the run's model is {kind or 'of a class that run.json does not name'}: names, shapes and config were compared"
            " with Llama's, not what it computes; a run with `steps_per_hf_export` set compares that too"
        )
    return 0
