"""How fast CORE's questions are answered by the yardstick model "d6", beside one example a forward pass in PyTorch.

    python -m benchmarks.core --bundle FOLDER --peer PYTHON     # PYTHON: an interpreter that has torch 2.13
    python -m benchmarks.core --bundle FOLDER                   # without a peer

d6: 6 layers of width 384, 6 heads of 64, relu^2 MLP of 4x, QK norm, value embeddings on alternating layers, scalars per layer,
untied head, soft-cap 15, vocabulary 8,192, f32. Questions are 10-shot ARC-Easy (four choices) and LAMBADA (no examples) of the
bundle, encoded by a tokenizer that is trained on its texts.

Prints one JSON line a figure: name, value, unit, n (repetitions), context. Each program is a process of its own that answers in
turn, so that both see the same machine; a rate is the median of the repetitions, the ratio is that of the medians. The peer
answers the first of our questions, as many as `--peer-share` says, since its rate does not depend on how many there are.
Reading, encoding and compiling are not in the rates; `first` is our first pass, which compiles.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.train_step import Program, report

PEER = Path(__file__).with_name("peer_core.py")
TASKS = {"arc_easy": 128, "lambada_openai": 1024}


def serve(path: str) -> None:
    """Our side: the scorer that every CORE evaluation uses."""
    import jax

    from marin.evaluation.likelihood import Group, LikelihoodScorer
    from marin.models import GptConfig
    from marin.training.compile_cache import use_compile_cache
    from marin.training.host_memory import keep_freed_memory

    keep_freed_memory()
    use_compile_cache()
    config = GptConfig(
        seq_len=2048,
        hidden_dim=384,
        num_layers=6,
        num_heads=6,
        window_pattern="L",
        value_gates=False,
        smear=False,
        backout=False,
    )
    scorer = LikelihoodScorer(config.build(8192, key=jax.random.key(0)))
    groups: dict[str, list[Group]] = {}
    for line in Path(path).read_text().splitlines():
        question = json.loads(line)
        groups.setdefault(question["task"], []).append(Group.of(question["rows"], question["starts"]))
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        asked = groups[line.strip()]
        start = time.perf_counter()
        answered = sum(1 for _ in scorer.score(asked))
        print(json.dumps({"seconds": time.perf_counter() - start, "count": answered}), flush=True)


def write_questions(
    bundle: str, folder: Path, counts: dict[str, int], share: float
) -> tuple[Path, Path, dict[str, float]]:
    """The questions for us and the first of them for the peer, and the mean tokens of a sequence by task."""
    from marin.data.documents import Document, write_documents
    from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
    from marin.evaluation.core import Bundle
    from marin.evaluation.core.prompts import questions

    tasks = [task for task in Bundle.open(bundle).tasks if task.label in counts]
    texts = [text for task in tasks for item in task.items for text in _texts(item)]
    write_documents(str(folder / "text.jsonl.zst"), [Document(str(i), text, "bundle") for i, text in enumerate(texts)])
    train_tokenizer(TrainTokenizerConfig(str(folder / "text.jsonl.zst"), 8192, output_path=str(folder)))
    tokenizer = Tokenizer.load(str(folder))
    ours, peers = folder / "questions.jsonl", folder / "peer.jsonl"
    lengths = {}
    with ours.open("w") as for_us, peers.open("w") as for_peer:
        for task in tasks:
            sizes: list[int] = []
            for question in questions(task, tokenizer, max_items=counts[task.label]):
                group = question.group
                rows = [[*group.prefix.tolist(), *row.tolist()] for row in group.rows]
                starts = [len(group.prefix) + start for start in group.starts]
                sizes += map(len, rows)
                line = json.dumps({"task": task.label, "rows": rows, "starts": starts}) + "\n"
                for_us.write(line)
                if question.number < share * counts[task.label]:
                    for_peer.write(line)
            lengths[task.label] = statistics.mean(sizes)
    return ours, peers, lengths


def _texts(item: Any) -> list[str]:
    return [
        text
        for value in item.values()
        for text in (value if isinstance(value, list) else [value])
        if isinstance(text, str)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of CORE's evaluation on the yardstick model d6.")
    parser.add_argument("--bundle", help="a folder with CORE's data")
    parser.add_argument("--peer", help="an interpreter that has PyTorch")
    parser.add_argument("--peer-share", type=float, default=0.125, help="share of the questions that the peer answers")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of questions")
    parser.add_argument("--serve", metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    if not args.bundle:
        parser.error("--bundle: give the folder with CORE's data")
    from marin.hardware import host_info

    counts = {label: max(16, round(count * args.scale)) for label, count in TASKS.items()}
    with tempfile.TemporaryDirectory() as folder:
        ours, peers, lengths = write_questions(args.bundle, Path(folder), counts, args.peer_share)
        environment = os.environ | {"MARIN_COMPILE_CACHE": str(Path(folder) / "compiled")}
        programs = {"ours": Program([sys.executable, "-m", "benchmarks.core", "--serve", str(ours)], environment)}
        if args.peer:
            programs["peer"] = Program([args.peer, str(PEER), str(peers)], dict(os.environ))
        machine = {"precision": "f32", "machine": host_info()["cpu_model"], "load": round(os.getloadavg()[0], 1)}
        for label in counts:
            context = machine | {"items": counts[label], "mean tokens": round(lengths[label])}
            first = programs["ours"].say(label)["seconds"]
            rates: dict[str, list[float]] = {name: [] for name in programs}
            for _ in range(args.repetitions):
                for name, program in programs.items():
                    answer = program.say(label)
                    rates[name].append(answer["count"] / answer["seconds"])
            median = {name: statistics.median(values) for name, values in rates.items()}
            n = args.repetitions
            report(f"core_{label}_first", first, "s", 1, context)
            for name, values in rates.items():
                spread = {"range": [round(min(values), 2), round(max(values), 2)]}
                what = f"core_{label}_rate" if name == "ours" else f"core_{label}_peer_rate"
                report(what, median[name], "examples/s", n, context | spread)
            if args.peer:
                told = {"torch": programs["peer"].ready["version"]}
                report(f"core_{label}_ratio", median["ours"] / median["peer"], "x the peer's rate", n, context | told)
        for program in programs.values():
            program.close()


if __name__ == "__main__":
    main()
