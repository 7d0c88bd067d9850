"""`marin eval`: EleutherAI's evaluation harness on one of our checkpoints."""

import argparse
import json
import os
from pathlib import Path

from marin.errors import ConfigError
from marin.flags import check_at_least

HELP = """\
Evaluate a checkpoint on tasks of EleutherAI's lm-eval, which the extra `eval` installs.

CHECKPOINT is a run's output directory, of which the newest whole checkpoint is taken, one of its checkpoints/step-*, or a
folder in Hugging Face's layout. Tasks are named as lm-eval names them; those of your own are YAML files in a folder that
`--include-path` names. CORE is evaluated by `python -m scripts.base_eval`."""


# What of the harness's results is written: figures and what they are of, not its whole configuration.
_KEPT = ("results", "groups", "versions", "n-shot", "n-samples")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT")
    parser.add_argument("--tasks", required=True, metavar="NAMES", help="names or groups, separated by commas")
    parser.add_argument("--num-fewshot", type=int, metavar="N", help="examples before each item; default: the task's")
    parser.add_argument("--limit", type=int, metavar="N", help="items of each task; default: all")
    parser.add_argument("--include-path", metavar="DIR", help="a folder with task files of your own")
    parser.add_argument("--max-length", type=int, metavar="N", help="longest sequence; default: the model's context")
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="a tokenizer.json, or a directory with one; default: the run's"
    )
    parser.add_argument(
        "--no-bos", action="store_true", help="do not begin texts with the token that begins documents in training"
    )
    parser.add_argument("--output", metavar="FILE", help="write the results as JSON")


def run(args: argparse.Namespace) -> int:
    check_at_least(0, args, "num_fewshot")
    check_at_least(1, args, "limit", "max_length")
    if args.include_path is not None and not Path(args.include_path).is_dir():
        raise ConfigError(
            f"`--include-path` is {args.include_path}, which is no folder: give one with task files (*.yaml)"
        )
    if args.output is not None and not Path(args.output).absolute().parent.is_dir():
        raise ConfigError(f"`--output` is {args.output}, whose folder is not there: make it first")
    if args.output is not None and Path(args.output).exists() and not Path(args.output).is_file():
        what = "a folder: name a file in it" if Path(args.output).is_dir() else "no ordinary file: name one"
        raise ConfigError(f"`--output` is {args.output}, which is {what}")
    wanted = [name.strip() for name in args.tasks.split(",") if name.strip()]
    if not wanted:
        raise ConfigError("`--tasks` is blank: name one task or more, such as piqa,arc_easy")
    from marin.evaluation.harness_tasks import require_harness

    require_harness("`marin eval`")
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table

    from marin.evaluation.harness import HarnessModel
    from marin.evaluation.harness_tasks import evaluate_tasks, named_tasks
    from marin.storage import files
    from marin.training.compile_cache import use_compile_cache
    from marin.training.run_model import load_any_model

    manager = TaskManager(include_path=args.include_path)
    names = named_tasks(wanted, manager)
    use_compile_cache()
    loaded = load_any_model(args.checkpoint, tokenizer=args.tokenizer)
    model = HarnessModel(
        loaded.model,
        loaded.tokenizer,
        max_length=args.max_length or loaded.config.max_seq_len,
        precision=loaded.precision,
        begin_documents=not args.no_bos,
    )
    results = evaluate_tasks(model, names, manager, num_fewshot=args.num_fewshot, limit=args.limit)
    print(f"{loaded.name}, step {loaded.step:,}" + (f", at most {args.limit:,} items a task" if args.limit else ""))
    print(make_table(results))
    if args.output is not None:
        content = {"model": loaded.name, "step": loaded.step, "limit": args.limit}
        content |= {key: value for key, value in results.items() if key in _KEPT}
        with files.placed_by("--output"):
            files.write_bytes(
                os.path.realpath(args.output), (json.dumps(content, indent=2, default=str) + "\n").encode()
            )
        print(f"results in {args.output}")
    return 0
