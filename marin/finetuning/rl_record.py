"""The record of a run of reinforcement learning: `run.json` and `metrics.jsonl`, as every training run has them.

Programs are compiled when samples first have their lengths. What that takes before the first step is the `compile_time` of the
`start` line, and later a pause with the reason `compile`. A step's line has besides `reward`, the mean over its samples, `sampled_tokens`, and `mean_length`, the tokens of a sample.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from marin.finetuning.compiling import Compiling
from marin.finetuning.origin import Origin
from marin.finetuning.policy import Rollout
from marin.models.lm import count_parameters
from marin.tracking import RunRecord, RunWriter
from marin.tracking.environment import capture_environment
from marin.tracking.mirrors import Mirrors, open_mirrors
from marin.tracking.run_record import RUN_FILE
from marin.training.clock import TrainingClock
from marin.training.config_json import config_to_json
from marin.training.run_paths import recorded_paths


class RlRecord:
    """Writes the record of one process, and says on the terminal how it goes."""

    def __init__(
        self,
        config: Any,
        origin: Origin,
        optimizer: Any,
        directory: Path,
        num_steps: int,
        model: Any,
        compiling: Compiling,
    ) -> None:
        self.directory, self._num_steps, self._compiling = directory, num_steps, compiling
        self.writer = RunWriter(directory)
        if not (directory / RUN_FILE).exists():
            self.writer.write_info(_info(config, origin, optimizer, num_steps, model))
        self.info = json.loads((directory / RUN_FILE).read_text())
        self._clock = TrainingClock(self.writer)
        self._stack = contextlib.ExitStack()
        self._mirrors: Mirrors = self._stack.enter_context(open_mirrors(directory, self.info))

    def start(self, first_step: int, seconds: float) -> None:
        """The line that says that a process goes on from this step, after so many seconds, compiling among them."""
        compile_time = self._compiling.take()
        self.writer.append(
            "start",
            from_step=first_step,
            setup_time=round(max(0.0, seconds - compile_time), 3),
            compile_time=round(compile_time, 3),
            host=self.info["host"].get("cpu_model"),
            devices=[device.device_kind for device in jax.local_devices()[:1]],
        )

    def begin(self) -> None:
        """Starts the clock."""
        self._compiling.take()
        self._clock.start()

    @contextlib.contextmanager
    def pause(self, reason: str, step: int) -> Iterator[None]:
        """Time that training does not count, compiling included."""
        with self._clock.pause(reason, step):
            yield
        self._compiling.take()

    def step(self, step: int, figures: Mapping[str, float], groups: Sequence[Sequence[Rollout]]) -> None:
        """A step that has ended."""
        rollouts = [rollout for group in groups for rollout in group]
        sampled = sum(len(rollout.tokens) for rollout in rollouts)
        reward = sum(rollout.reward for rollout in rollouts) / len(rollouts)
        tokens = sampled + sum(len(rollout.prompt) for rollout in rollouts)
        more = {"reward": round(reward, 6), "sampled_tokens": sampled, "mean_length": round(sampled / len(rollouts), 3)}
        if compiled := self._compiling.take():
            self._clock.was_paused("compile", step, compiled)
        seconds = self._clock.lap()
        timing = {"step_time": round(seconds, 6), "data_wait": 0.0}
        self.writer.append("step", step=step, tokens=tokens, **timing, **figures, **more)
        self._mirrors.log("train", step, {**figures, **more})
        # An advantage is a reward less the mean of its question's: where they are all alike there is no gradient.
        teaches = any(rollout.reward != group[0].reward for group in groups for rollout in group)
        note = "" if teaches else "  (teaches nothing: the samples of each question have one reward)"
        print(
            f"step {step + 1}/{self._num_steps}  reward {reward:.3f}  {more['mean_length']:.0f} tokens a sample"
            f"  {seconds:.1f} s{note}",
            flush=True,
        )

    def evaluation(self, done: int, figures: dict[str, float]) -> None:
        """What was measured after `done` steps."""
        self.writer.append("evaluation", step=done, **figures)
        self._mirrors.log("eval", max(done - 1, 0), figures)
        shown = "  ".join(f"{name} {value:.3f}" for name, value in figures.items())
        print(f"step {done}: held-out {shown}", flush=True)

    def finish(self, num_steps: int, figures: dict[str, float]) -> None:
        """The last measurement, and the line that makes the record complete."""
        if not RunRecord.open(self.directory).is_complete:
            self.evaluation(num_steps, figures)
            self.writer.append("end", steps=num_steps)

    def summary(self) -> dict[str, Any]:
        """Figures of the whole run so far; rewards are those of the first and the last tenth of the steps."""
        steps = RunRecord.open(self.directory).steps()
        tenth = max(1, len(steps) // 10)
        first, last = ([step["reward"] for step in part] for part in (steps[:tenth], steps[-tenth:]))
        return {
            "steps": len(steps),
            "training_time": sum(step["step_time"] for step in steps),
            "sampled_tokens": sum(step["sampled_tokens"] for step in steps),
            "first_reward": sum(first) / len(first),
            "last_reward": sum(last) / len(last),
        }

    def close(self) -> None:
        self._stack.close()
        self.writer.close()


def _info(config: Any, origin: Origin, optimizer: Any, num_steps: int, model: Any) -> dict[str, Any]:
    environment, _ = capture_environment()
    described = config_to_json(config) | {
        "model": config_to_json(origin.model),
        "tokenizer": origin.tokenizer,
        "vocab_size": origin.vocab_size,
        "train": {
            "train_batch_size": origin.batch_size,
            "num_train_steps": num_steps,
            "learning_rate": optimizer.learning_rate,
            "optimizer_config": config_to_json(optimizer),
            "per_device_parallelism": config.device_batch_size,
        },
    }
    described = recorded_paths(described, str(config.output_path))
    del described["output_path"]  # where the record lies
    identity = config_to_json(config, omit_placement=True)
    resources = config.resources
    return {
        "schema_version": 1,
        "run_name": config.run_name,
        "tags": ["rl"],
        "config": described,
        "model_class": origin.model_class,
        "num_parameters": count_parameters(model),
        "model_flops_per_token": origin.model.flops_per_token(origin.vocab_size, origin.model.max_seq_len),
        "platform": resources.platform,
        "device_name": resources.device_name,
        "num_devices": 1,
        "num_chips": 1,
        "num_processes": 1,
        "device_flops": resources.device_flops,
        "precision": origin.precision,
        "seeds": {"model": config.seed, "data": config.seed},
        "digests": {"config": hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()},
        **environment,
    }
