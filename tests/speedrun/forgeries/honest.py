"""Honest submissions, made by the engine's own record writer and results code under a clock that the test moves.

A `Plan` says what ran: sizes, device, schedule, how often it was killed, what stopped the clock. `write_submission` plays it: it
writes `run.json` and `metrics.jsonl` through `RunWriter` as the training loop does, the evaluation as the evaluation step does, and
the results with `results_from_run`. The losses and times are random, all else follows the rules of a real run.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import pathlib
import random
import types
from collections.abc import Iterator
from typing import Any

from marin import hardware
from marin.data.batch_schedule import BatchSchedule
from marin.data.core_tasks import CORE_TASKS
from marin.errors import HardwareError
from marin.speedrun.arithmetic.core_counts import core_of
from marin.speedrun.arithmetic.known_models import GPT, LLAMA, model_of_class
from marin.speedrun.evaluation_record import EvaluationRecord
from marin.speedrun.results import Core, CoreCounts, RunInfo, dump_results
from marin.speedrun.run_results import SubmissionInfo, results_from_run
from marin.tracking import RunWriter, log_chain, run_record

BEGIN = 1_760_000_000.0  # 2025-10-09, in the past of every test


@dataclasses.dataclass(frozen=True)
class Plan:
    """One run; `kills` are steps during which a process dies, `late` the part of lines that are written late."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    length: int = 128
    vocab: int = 1000
    batch: Any = 8
    steps: int = 40
    device: str = "A100"
    chips: int = 1
    seed: int = 0
    kills: tuple[int, ...] = ()
    checkpoint_every: int = 10
    eval_every: int = 1000
    export_every: int = -1
    profile: bool = False
    task_every: int | None = None
    step_time: float = 0.05
    late: float = 0.05
    model_class: str = LLAMA.model_class
    extra_model: dict[str, Any] = dataclasses.field(default_factory=dict)
    author: str = "Ada Example"
    description: str = "A small Llama."
    set_name: str = "books/heldout"
    wandb: str | None = None
    core: bool = False  # whether CORE was measured too


@dataclasses.dataclass
class _Clock:
    now: float

    def time(self) -> float:
        return self.now


@contextlib.contextmanager
def _clock(now: float) -> Iterator[_Clock]:
    clock = _Clock(now)
    saved = run_record.time
    run_record.time = types.SimpleNamespace(time=clock.time, perf_counter=clock.time)
    try:
        yield clock
    finally:
        run_record.time = saved


def peak_of(plan: Plan) -> float:
    try:
        return hardware.lookup_device(plan.device).peak("bf16")
    except HardwareError:
        return 2e11


def _model(plan: Plan) -> dict[str, Any]:
    if plan.model_class == GPT.model_class:
        return {
            "seq_len": plan.length, "hidden_dim": plan.hidden, "num_layers": plan.layers, "num_heads": plan.heads, "num_kv_heads": plan.kv_heads,
            "window_pattern": "SSSL", "value_embeddings": True, "value_gates": True, "smear": True, "backout": True, "query_key_scale": 1.2,
            "logit_softcap": 15.0, "rope": {"theta": 100_000, "factor": 1.0}, "cross_entropy_block_size": None,
            "gradient_checkpointing": False, **plan.extra_model,
        }  # fmt: skip
    return {
        "seq_len": plan.length, "hidden_dim": plan.hidden, "intermediate_dim": 3 * plan.hidden, "num_layers": plan.layers,
        "num_heads": plan.heads, "num_kv_heads": plan.kv_heads, "tie_word_embeddings": False, **plan.extra_model,
    }  # fmt: skip


def _traced_flops(plan: Plan) -> float:
    known = model_of_class(plan.model_class) or LLAMA
    return 0.9 * known.flops_per_token(_model(plan), plan.vocab, plan.length)


def _resources(plan: Plan) -> dict[str, Any]:
    if plan.device == "cpu":
        return {"num_cpus": 2}
    if plan.device.startswith("v"):
        return {"tpu_type": plan.device, "slice_count": 1, "device_flops_override": None}
    return {"accelerator_type": plan.device, "gpu_count": plan.chips, "device_flops_override": None}


def num_chips(plan: Plan) -> int:
    return hardware.tpu_chips(plan.device) if plan.device.startswith("v") else plan.chips


def _run_json(plan: Plan) -> dict[str, Any]:
    model = _model(plan)
    train = {
        "train_batch_size": plan.batch, "num_train_steps": plan.steps, "learning_rate": 0.01, "seed": plan.seed,
        "steps_per_eval": plan.eval_every, "steps_per_hf_export": plan.export_every, "skip_bad_steps": False,
        "steps_per_export": plan.checkpoint_every, "checkpoint_interval": 600.0,
        "profiler": plan.profile, "profiler_start_step": 3, "profiler_num_steps": 4,
        "resources": _resources(plan), "task_eval_names": [] if plan.task_every is None else ["piqa"],
        "steps_per_task_eval": plan.task_every,
    }  # fmt: skip
    known = model_of_class(plan.model_class) or LLAMA
    per_token = known.flops_per_token(model, plan.vocab, plan.length)

    def digest(value: Any) -> str:
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

    return {
        "schema_version": 1, "run_name": "example", "tags": ["speedrun"],
        "config": {"model": model, "train": train, "vocab_size": plan.vocab, "data": "store/tokenized/example", "output_path": "checkpoints/speedrun/example"},
        "model_class": plan.model_class,
        "num_parameters": known.parameters(model, plan.vocab),
        "data": [], "model_flops_per_token": per_token,
        "traced_flops_per_token": {"forward": _traced_flops(plan), "training": 3 * _traced_flops(plan), "uncounted": []},
        "calls_out": [],
        "platform": "cpu" if plan.device == "cpu" else "tpu" if plan.device.startswith("v") else "gpu",
        "device_name": plan.device, "num_devices": num_chips(plan), "num_chips": num_chips(plan), "num_processes": 1,
        "device_flops": peak_of(plan), "peak_is_given": False, "precision": "bf16",
        "seeds": {"model": plan.seed, "data": 42},
        "digests": {"config": digest([model, train]), "data": digest("data"), "tokenizer": digest("tokenizer")},
        "evaluation_link": log_chain.EVALUATION_LINK,
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False, "diff_sha256": None},
        "host": {"cpu_model": "Example CPU", "cores_usable": 2.0, "platform": "Linux x86_64"}, "packages": {"jax": "0.10.2"},
    }  # fmt: skip


def write_run(directory: pathlib.Path, plan: Plan, rng: random.Random, begin: float = BEGIN) -> None:
    """`run.json` and `metrics.jsonl` of the plan, as the training loop writes them."""
    info = _run_json(plan)
    schedule = BatchSchedule.of(plan.batch)
    kills = list(plan.kills)
    first = 0
    with _clock(begin) as clock:
        while True:
            writer = RunWriter(directory)
            writer.write_info(info)
            clock.now += 1.5
            writer.append(
                "start",
                from_step=first,
                setup_time=0.7,
                compile_time=round(rng.uniform(0.3, 0.8), 3),
                host="x",
                devices=["x"],
            )
            clock.now += rng.uniform(0.01, 2.0)  # mirrors and the prefetcher begin
            if plan.wandb:
                writer.append("mirror", wandb_url=plan.wandb)
            writer.append("clock")
            kill = kills.pop(0) if kills else None
            saved = _train(writer, clock, plan, info, schedule, first, kill, rng)
            writer.close()
            if kill is None:
                return
            first = saved
            clock.now += rng.uniform(1.0, 500.0)


def _train(
    writer: RunWriter,
    clock: _Clock,
    plan: Plan,
    info: dict[str, Any],
    schedule: BatchSchedule,
    first: int,
    kill: int | None,
    rng: random.Random,
) -> int:
    """The steps of one process; returns the step of its last checkpoint."""
    saved = first
    true_time = clock.now  # when the step before really ended; lines may be written a little later

    def pause(reason: str, step: int, seconds: float) -> None:
        nonlocal true_time
        true_time += seconds
        clock.now = max(clock.now, true_time)
        writer.append("pause", reason=reason, step=step, seconds=round(seconds, 6))

    work = 3 * info["model_flops_per_token"] * schedule.size_at(0) * plan.length
    usual = max(plan.step_time, work / (info["num_chips"] * info["device_flops"]) / 0.3)
    for step in range(first, plan.steps):
        if step == kill:
            return saved
        if plan.profile and step == first + 3:
            pause("profiler", step, rng.uniform(0.2, 0.6))
        seconds = usual * schedule.size_at(step) / schedule.size_at(0) * rng.lognormvariate(0.0, 0.05)
        seconds *= 1.0 + (rng.random() < 0.03) * rng.uniform(0.5, 4.0)
        true_time += seconds
        clock.now = max(
            clock.now, true_time + (rng.uniform(0.0, 0.03) if rng.random() < plan.late else rng.uniform(0.0, 3e-4))
        )
        tokens = schedule.size_at(step) * plan.length
        mfu = 3 * info["model_flops_per_token"] * tokens / seconds / (info["num_chips"] * info["device_flops"])
        loss = (
            2.0
            + (math.log(plan.vocab) - 2.0) * math.exp(-4.0 * step / plan.steps)
            + random.Random(plan.seed * 7919 + step).gauss(0.0, 0.03)
        )
        writer.append(
            "step", step=step, tokens=tokens, step_time=round(seconds, 6), data_wait=round(0.01 * seconds, 6),
            mfu_model_flops=round(mfu, 5), loss=loss, grad_norm=rng.lognormvariate(0.0, 0.2), learning_rate=0.01,
        )  # fmt: skip
        done = step + 1
        if plan.profile and done == min(first + 7, plan.steps) and done > first + 3:
            pause("profiler", step, rng.uniform(0.2, 0.6))
        if done % plan.eval_every == 0 and done != plan.steps:
            pause("evaluation", step, rng.uniform(0.1, 1.0))
            writer.append("evaluation", step=done, bits_per_byte=loss / 3)
        if plan.task_every is not None and (done % plan.task_every == 0 or done == plan.steps):
            pause("task evaluation", step, rng.uniform(0.1, 1.0))
            writer.append("evaluation", step=done, piqa=0.5)
        if done % plan.checkpoint_every == 0 or done == plan.steps:
            pause("checkpoint", done, rng.uniform(0.01, 0.1))
            writer.append("checkpoint", step=done, bytes=1000, seconds=0.05)
            saved = done
        if plan.export_every > 0 and done % plan.export_every == 0:
            pause("hf export", step, rng.uniform(0.1, 0.3))
    clock.now = max(clock.now, true_time) + 0.02
    writer.append("end", steps=plan.steps, peak_memory_bytes=10**9, checkpoint=f"{plan.seed:064x}")
    return plan.steps


def _validity(rng: random.Random) -> dict[str, Any]:
    limits = {"normalization": 1e-4, "causality": 1e-3, "one_pass": 1e-3, "byte_count": 0.0, "held_out": 0.25}
    probes = {
        name: {"passed": True, "measured": rng.uniform(0.0, 0.1) * limit, "limit": limit, "message": "fine"}
        for name, limit in limits.items()
    }
    return {"passed": True, "seed": rng.getrandbits(32), "num_cuts": 768, "num_positions": 64, "seconds": 1.5, **probes}


def evaluation_of(plan: Plan, rng: random.Random) -> dict[str, Any]:
    tokens = 10_000 + rng.randrange(1000)
    num_bytes = int(tokens * rng.uniform(2.5, 3.5))
    bits = (2.05 + rng.gauss(0.0, 0.02)) * tokens / (math.log(2) * num_bytes)
    return {
        "evaluation": {
            "name": plan.set_name, "digest": hashlib.sha256(plan.set_name.encode()).hexdigest(), "bits_per_byte": bits,
            "levanter_bits_per_byte": bits * 1.004, "bytes": num_bytes, "tokens": tokens, "documents": 50,
            "context_length": plan.length, "flops_per_token": _traced_flops(plan),
        },
        "validity": _validity(rng),
        "compressors": {"gzip_9": 2.4, "xz_9": 2.0, "zstd_19": 2.1},
        "sample": "Return the value of the sum",
    }  # fmt: skip


def write_submission(directory: pathlib.Path, plans: list[Plan], rng: random.Random) -> pathlib.Path:
    """A submission with one run a plan; each run begins a day after the one before."""
    infos = []
    for number, plan in enumerate(plans):
        log = directory / "logs" / str(number)
        write_run(log, plan, rng, BEGIN + 86_400.0 * number + rng.uniform(0, 3600))
        (log / "evaluation.json").write_text(json.dumps(evaluation_of(plan, rng)))
        author = {"name": plan.author, "affiliation": "Independent", "url": "https://example.org/ada"}
        per_token = json.loads((log / "run.json").read_text())["model_flops_per_token"]
        submission = SubmissionInfo(author, plan.description, per_token, per_token)
        info = results_from_run(log, log, "tokenized/example", submission)
        infos.append(_with_core(info, rng) if plan.core else info)
    (directory / "speedrun_results.json").write_bytes(dump_results(infos))
    (directory / "main.py").write_text("raise SystemExit('submitted code must not run')\n")
    return directory


def _with_core(info: RunInfo, rng: random.Random) -> RunInfo:
    assert info.digests is not None and info.digests.log_head is not None
    tasks = {
        label: CoreCounts(
            num_items=task.num_items, num_correct=rng.randrange(task.num_items), records=f"{rng.getrandbits(256):064x}"
        )
        for label, task in CORE_TASKS.items()
    }
    core = Core(weights=info.digests.checkpoint, tasks=tasks)
    info = info.model_copy(update={"core": core, "core_metric": core_of(core, "v1"), "core_version": "v1"})
    link = EvaluationRecord.of(info).link(str(info.digests.log_head))
    return info.model_copy(update={"digests": info.digests.model_copy(update={"evaluation_link": link})})


def honest_plans(count: int) -> list[list[Plan]]:
    """Plans of `count` submissions that differ in model, size, device, schedule, interruptions and pauses; some have several seeds."""
    rng = random.Random(20261122)
    found = []
    for number in range(count):
        heads = rng.choice([2, 4, 8])
        device, chips = rng.choice(
            [("A100", 1), ("A100", 4), ("H100", 8), ("v5p-32", 1), ("v4-8", 1), ("cpu", 1), ("L4", 1), ("v6e-4", 1)]
        )
        steps = rng.choice([3, 12, 40, 40, 80, 150])
        batch: Any = rng.choice([4, 8, 16, [(0, 4), (steps // 2, 8)]])
        plan = Plan(
            hidden=16 * heads * rng.choice([1, 2]), layers=rng.choice([1, 2, 6]), heads=heads, kv_heads=rng.choice([1, heads]),
            length=rng.choice([64, 128, 512]), vocab=rng.choice([300, 1000, 32000]), batch=batch, steps=steps, device=device, chips=chips,
            kills=tuple(sorted(rng.sample(range(1, steps), k=rng.choice([0, 0, 1, min(3, steps - 1)])))),
            checkpoint_every=rng.choice([5, 10, 50]), eval_every=rng.choice([4, 25, 1000]), export_every=rng.choice([-1, -1, 20]),
            profile=rng.random() < 0.2, task_every=rng.choice([None, None, 8]), step_time=rng.choice([0.004, 0.05, 1.5, 30.0]), late=rng.choice([0.0, 0.1, 0.4]),
            model_class=rng.choice([LLAMA.model_class, LLAMA.model_class, "__main__:MyConfig"]), author=rng.choice(AUTHORS),
            wandb=rng.choice([None, f"https://wandb.ai/example/marin/runs/run-{number}"]), core=number % 5 == 0,
        )  # fmt: skip
        if number % 7 == 0:
            plan = dataclasses.replace(plan, model_class=GPT.model_class)
        seeds = rng.choice([1, 1, 1, 3])
        found.append(
            [dataclasses.replace(plan, seed=seed, wandb=plan.wandb and f"{plan.wandb}-{seed}") for seed in range(seeds)]
        )
    return found


AUTHORS = (
    "Ada Example", "José García", "Андрей Иванов", "李小龍", "Ngô Bảo Châu", "O'Brien-Smith", "Γιώργος Παπαδόπουλος", "محمد علي",
    "Zoë van der Berg", "김민수", "ABC Lab 2", "Jean-Luc d'Arc",
)  # fmt: skip
