"""Reinforcement learning on questions whose answers can be checked, on-policy: sample, grade, step, with the new weights again.

    each step: some questions -> samples of each by the engine -> 0 or 1 -> the loss of `marin.finetuning.policy` -> optimizer

What a step does is a function of the state before it, the seed and the step's number: a run that was interrupted goes through
the same states as one that was not. It leaves a run like any other. One process does it all, on its first device.
"""

import contextlib
import dataclasses
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax

from marin.data.pace import Pace
from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError, NonFiniteLossError
from marin.evaluation.chat import ChatTask, Question, reply_text, stop_tokens
from marin.evaluation.chat.scoring import prompt_of
from marin.execution.attempts import usual_path
from marin.execution.step import placement, this_output_path
from marin.finetuning.compiling import Compiling
from marin.finetuning.origin import FinetuneRates, Origin, finetuning_optimizer
from marin.finetuning.policy import Rollout, pass_at, policy_batch
from marin.finetuning.rl_record import RlRecord
from marin.finetuning.rl_tasks import rl_task
from marin.inference.context import note_long_answers
from marin.inference.engine import Engine
from marin.inference.options import MAX_SEED, SamplingOptions
from marin.nn.precision import Precision
from marin.optim.config import check_range
from marin.resources import Resources
from marin.storage import files
from marin.training import checkpoint as checkpoints
from marin.training.checkpoint_writer import CheckpointWriter
from marin.training.compile_cache import use_compile_cache
from marin.training.preflight import check_devices, keep_to_cpus, take_gpu_memory
from marin.training.state import SPOILED, StepConfig, before_bad_step, init_state, make_train_step
from marin.training.stopping import StopRequest

FIGURES_FILE = "rl.json"
_MOMENTUM = (0.95, 0.95, 1)
_MEASURED_AT_ONCE = 32  # questions, between lines that say how far it is
_SECONDS_BETWEEN_LINES = 5.0


@dataclasses.dataclass(frozen=True)
class RlConfig:
    """A run of reinforcement learning.

    Args:
        task: see `marin.finetuning.rl_tasks`.
        num_questions: to learn from, where they are made.
        num_epochs: how often each question is asked.
        examples_per_step, num_samples: questions of a step, and samples of each.
        max_new_tokens, temperature, top_k: of a sample.
        device_batch_size: samples that the gradient is computed of at once, and those of a question in an evaluation.
        eval_every, save_every: steps between measurements, and between checkpoints that are kept; below 1 for the end only.
        eval_examples: held-out questions of a measurement.
    """

    marin_resumable: ClassVar[bool] = True

    resources: Resources
    origin_digest: str
    task: str = "gsm8k"
    rates: FinetuneRates = FinetuneRates(init_lr_frac=0.05, warmdown_ratio=1.0)
    num_questions: int = 2048
    num_epochs: int = 1
    examples_per_step: int = 16
    num_samples: int = 16
    max_new_tokens: int = 256
    temperature: float = 1.0
    top_k: int | None = 50
    seed: int = 42
    origin: str = placement(default="")
    device_batch_size: int = placement(default=8)
    eval_every: int = placement(default=60)
    eval_examples: int = placement(default=400)
    save_every: int = placement(default=60)
    task_data: str = placement(default="")
    run_name: str = placement(default="run")
    checkpoint_interval: float = placement(default=600.0)
    flags: Mapping[str, Any] = placement(default_factory=dict)
    output_path: str = this_output_path()

    def __post_init__(self) -> None:
        for name in (
            "num_questions",
            "num_epochs",
            "examples_per_step",
            "max_new_tokens",
            "device_batch_size",
            "eval_examples",
        ):
            check_range(name, getattr(self, name), at_least=1, whole=True)
        check_range("num_samples", self.num_samples, at_least=2, whole=True)
        check_range("seed", self.seed, at_least=0, at_most=MAX_SEED, whole=True)
        _ = self.sampling  # what it refuses is refused before anything is made
        check_range("temperature", self.temperature, above=0.0)
        if self.top_k == 1:
            raise ConfigError(
                "`top_k` is 1: all samples of a question would be the same, and there is nothing to learn from: use at least 2,"
                " such as 50, or `--top-k 0` for all tokens"
            )
        check_range("checkpoint_interval", self.checkpoint_interval, above=0.0)
        samples = self.examples_per_step * self.num_samples
        if samples % min(self.device_batch_size, samples):
            raise ConfigError(
                f"`--device-batch-size` is {self.device_batch_size}, which does not divide the {samples} samples of a step"
                " (`--examples-per-step` x `--num-samples`): use a divisor"
            )

    @property
    def sampling(self) -> SamplingOptions:
        """How the model is asked, but for the tokens that end an answer."""
        return SamplingOptions(self.max_new_tokens, temperature=self.temperature, top_k=self.top_k, seed=self.seed)


def train_rl(config: RlConfig) -> None:
    """Trains, or continues, and measures at the end.

    Raises:
        ConfigError: the flags do not go together, or with the run to begin from.
        NonFiniteLossError: a loss or gradient is NaN or infinite; the state before it is saved.
    """
    with Compiling() as compiling:
        _train(config, compiling)


def _train(config: RlConfig, compiling: Compiling) -> None:
    began = time.perf_counter()
    # ---- set-up ------------------------------------------------------------------------------------------------------
    keep_to_cpus(config.resources)
    take_gpu_memory(config.resources)
    use_compile_cache()
    check_devices(config.resources)
    origin = Origin.reopen(config.origin, config.origin_digest)
    tokenizer = Tokenizer.load(origin.tokenizer)
    learned, held_out = rl_task(
        config.task, Path(config.task_data), num_questions=config.num_questions, seed=config.seed
    )
    num_steps = len(learned.questions) // config.examples_per_step * config.num_epochs
    if num_steps < 1:
        raise ConfigError(
            f"`--examples-per-step` is {config.examples_per_step}, the task has {len(learned.questions)} questions: use fewer"
        )
    directory = Path(str(config.output_path))
    optimizer_config = finetuning_optimizer(origin, config.rates, momentum=_MOMENTUM)
    model = origin.model.build(origin.vocab_size, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)
    optimizer = optimizer_config.build(params, num_steps)
    found, problems = checkpoints.latest_valid(directory / "checkpoints")
    for problem in problems:
        print(f"warning: {problem}")
    if found is None:
        params = checkpoints.restore(origin.checkpoint, params, prefix="model.")
        state = init_state(eqx.combine(params, static), optimizer, None)
    else:
        state = checkpoints.restore(found, init_state(model, optimizer, None))
        print(f"continuing from the checkpoint of step {found.step:,} of {num_steps:,}")
    # On a named device from the first step on: else the second step, whose state is on one, would be compiled again.
    arrays, static = eqx.partition(state, eqx.is_array)
    state = eqx.combine(jax.device_put(arrays, jax.local_devices()[0]), static)
    precision = Precision(origin.precision)
    sampler = Sampler(config, state.model, tokenizer, precision, [learned, held_out], origin.model.max_seq_len)
    origin.note(directory)

    # ---- the loop ----------------------------------------------------------------------------------------------------
    rows = config.examples_per_step * config.num_samples
    step_config = StepConfig(precision, micro_batches=rows // min(config.device_batch_size, rows))
    take_step = jax.jit(make_train_step(optimizer, optimizer_config.schedule(num_steps), step_config), donate_argnums=0)
    first_step = 0 if found is None else found.step
    keep_every = config.save_every if config.save_every > 0 else num_steps
    with contextlib.closing(
        RlRecord(config, origin, optimizer_config, directory, num_steps, model, compiling)
    ) as record:
        record.start(first_step, time.perf_counter() - began)
        saver = CheckpointWriter(directory / "checkpoints", keep_every=keep_every, record=record.writer, restored=found)
        last_save = time.monotonic()
        with StopRequest() as stop, saver:
            if first_step == 0 and config.eval_every > 0:
                with record.pause("evaluation", 0):
                    record.evaluation(0, sampler.measure(state.model, held_out, config.eval_examples))
            record.begin()
            for step in range(first_step, num_steps):
                saver.check()
                groups = sampler.sample(state.model, questions_of(learned, config, step), step)
                state, metrics = take_step(state, policy_batch(groups, tokenizer.bos_id))
                figures = {name: float(value) for name, value in metrics.items()}
                if figures.pop(SPOILED):
                    raise NonFiniteLossError(
                        f"at step {step} the optimizer made numbers that are not finite of a finite loss and gradient: the weights"
                        f" are spoiled, and only the checkpoints before are kept. Move {usual_path(str(directory))} away, and"
                        " train with a lower `--init-lr-frac`"
                    )
                if (before := before_bad_step(state)) is not None:
                    if step > first_step:
                        saver.save(before, step)
                        saver.wait()
                    raise NonFiniteLossError(
                        f"the loss or the gradient of step {step} is not finite (loss {figures['loss']}); the state before it is"
                        f" kept. The same command would come to it again: move {usual_path(str(directory))} away, and train with"
                        " a lower `--init-lr-frac`"
                    )
                record.step(step, figures, groups)
                done, last = step + 1, step + 1 == num_steps
                if config.eval_every > 0 and done % config.eval_every == 0 and not last:
                    with record.pause("evaluation", step):
                        record.evaluation(done, sampler.measure(state.model, held_out, config.eval_examples))
                due = time.monotonic() - last_save > config.checkpoint_interval
                if last or stop.requested or due or (config.save_every > 0 and done % config.save_every == 0):
                    with record.pause("checkpoint", step):
                        saver.save(state, done)
                        if last or stop.requested:
                            saver.wait()
                    last_save = time.monotonic()
                if stop.requested and not last:
                    print(f"stopping: the checkpoint of step {done} is saved")
                    break
        if (directory / FIGURES_FILE).exists() or int(state.step) < num_steps:
            return

        # ---- the end -------------------------------------------------------------------------------------------------
        measured = sampler.measure(state.model, held_out, config.eval_examples)
        record.finish(num_steps, measured)
        files.write_json(str(directory / FIGURES_FILE), record.summary() | measured)
        shown = "  ".join(f"{name} {value:.3f}" for name, value in measured.items())
        print(f"after {num_steps:,} steps: {shown}")


def questions_of(task: ChatTask, config: RlConfig, step: int) -> list[Question]:
    """The questions of a step: each epoch asks all in an order of its own, but for what is left over at its end."""
    per_epoch = len(task.questions) // config.examples_per_step
    epoch, index = divmod(step, per_epoch)
    order = list(range(len(task.questions)))
    random.Random(f"rl/{config.seed}/{epoch}").shuffle(order)
    begin = index * config.examples_per_step
    return [task.questions[number] for number in order[begin : begin + config.examples_per_step]]


class Sampler:
    """Asks the model of the moment; what it generates with is compiled once for a run."""

    def __init__(
        self,
        config: RlConfig,
        model: Any,
        tokenizer: Tokenizer,
        precision: Precision,
        tasks: Sequence[ChatTask],
        context: int,
    ) -> None:
        """Args:
        tasks: all that it will ask.
        context: tokens of the sequences that the model was trained with; samples beyond them are made, with a note.
        """
        self.config, self.tokenizer, self._tasks = config, tokenizer, tasks
        longest = max(len(prompt_of(question, tokenizer)) for task in tasks for question in task.questions)
        note_long_answers(longest, config.max_new_tokens, context, "`--max-new-tokens {}`")
        self._engine = Engine(
            model,
            tokenizer,
            max_length=longest + config.max_new_tokens,
            max_rows=max(config.num_samples, config.device_batch_size),
            precision=precision,
        )

    def sample(self, model: Any, questions: Sequence[Question], step: int) -> list[list[Rollout]]:
        """For each question its samples with their rewards."""
        self._engine.load(model)
        return self._ask(questions, self.config.num_samples, (self.config.seed * 1_000_003 + step) % MAX_SEED)

    def measure(self, model: Any, task: ChatTask, num_questions: int) -> dict[str, float]:
        """pass@k of held-out questions, for k from 1 to the device's batch in powers of two; lines say how far it is."""
        k = self.config.device_batch_size
        questions = task.questions[:num_questions]
        self._engine.load(model)
        groups: list[list[Rollout]] = []
        pace = Pace(_SECONDS_BETWEEN_LINES)
        while len(groups) < len(questions):
            first = len(groups)
            groups += self._ask(questions[first : first + _MEASURED_AT_ONCE], k, self.config.seed, first)
            if len(groups) < len(questions) and pace.is_due():
                print(f"  held-out questions: {len(groups):,} of {len(questions):,}", flush=True)
        right = [int(sum(rollout.reward for rollout in group)) for group in groups]
        wanted = sorted({1 << exponent for exponent in range(k.bit_length())} | {k})
        return {f"pass@{count}": pass_at(count, right, k) for count in wanted if count <= k}

    def _ask(self, questions: Sequence[Question], num_samples: int, seed: int, first: int = 0) -> list[list[Rollout]]:
        """The samples of some questions, of which the first is so far from the beginning of all that are asked under this seed."""
        config, grade = self.config, self._tasks[0].grade
        assert grade is not None
        options = dataclasses.replace(config.sampling, seed=seed, stop_tokens=stop_tokens(self.tokenizer))
        each = [options.of_prompt(first + number) for number in range(len(questions))]
        prompts = [prompt_of(question, self.tokenizer) for question in questions]
        groups = []
        for question, prompt, samples in zip(
            questions, prompts, self._engine.generate(prompts, each, num_samples=num_samples), strict=True
        ):
            group = []
            for sample in samples:
                # The model chose to end there, so that is learned like its other choices.
                ended = () if sample.stop_token is None else (sample.stop_token,)
                reward = float(grade(question, reply_text(sample.tokens, self.tokenizer)))
                group.append(Rollout(prompt, (*sample.tokens, *ended), (*sample.mask, *(1 for _ in ended)), reward))
            groups.append(group)
        return groups


def read_figures(run: Path) -> dict[str, Any]:
    """What `rl.json` of a finished run says."""
    figures: dict[str, Any] = files.read_json(str(run / FIGURES_FILE))
    return figures
