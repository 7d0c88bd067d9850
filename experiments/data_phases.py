"""A long run in phases: how many tokens each takes, in which batches, from which data. Settings of a run follow from it.

PHASES = (Phase("first", 2.7e12, 1024, {"web": 0.9, "code": 0.1}), Phase("cooldown", 1e12, 3072, {"books": 1.0}))
train_batch_size=batch_sizes(PHASES, 4096)        [(0, 1024), (643730, 3072)]
weights=mixture_weights(PHASES, 4096)             [(0, {...}), (643730, {...})]
"""

import dataclasses
from collections.abc import Mapping, Sequence

from experiments.marin_models import marin_tokenizer
from marin.data.mixture import Mixture
from marin.execution.step import ExecutorStep, InputName, this_output_path
from marin.models.lm import LmConfig
from marin.training.config import SimpleTrainConfig, TrainLmConfig
from marin.training.loop import train_lm


@dataclasses.dataclass(frozen=True)
class Phase:
    """Args:
    tokens: that the phase trains on.
    batch_size: sequences a step.
    mixture: weights of token caches by name, of which only the ratios matter.
    """

    name: str
    tokens: float
    batch_size: int
    mixture: Mapping[str, float]

    def num_steps(self, seq_len: int) -> int:
        return round(self.tokens / (self.batch_size * seq_len))


def first_steps(phases: Sequence[Phase], seq_len: int) -> list[int]:
    """The step with which each phase begins, and the number of all steps."""
    starts = [0]
    for phase in phases:
        starts.append(starts[-1] + phase.num_steps(seq_len))
    return starts


def batch_sizes(phases: Sequence[Phase], seq_len: int) -> list[tuple[int, int]]:
    """(first step, sequences a step), as `train_batch_size` takes it."""
    entries: list[tuple[int, int]] = []
    for start, phase in zip(first_steps(phases, seq_len), phases, strict=False):
        if not entries or entries[-1][1] != phase.batch_size:
            entries.append((start, phase.batch_size))
    return entries


def mixture_weights(phases: Sequence[Phase], seq_len: int) -> list[tuple[int, Mapping[str, float]]]:
    """(first step, weights), as `Mixture` takes it."""
    return [(start, phase.mixture) for start, phase in zip(first_steps(phases, seq_len), phases, strict=False)]


def component_names(phases: Sequence[Phase]) -> list[str]:
    """All caches that any phase reads, in the order of their first use."""
    return list(dict.fromkeys(name for phase in phases for name in phase.mixture))


def phased_step(
    name: str, model: LmConfig, vocab_size: int, train: SimpleTrainConfig, phases: Sequence[Phase]
) -> ExecutorStep:
    """A step that trains on the phases one after the other, from token caches below the prefix, at `tokenized/NAME`."""
    mixture = Mixture(
        components={cache: InputName.hardcoded(f"tokenized/{cache}") for cache in component_names(phases)},
        weights=mixture_weights(phases, model.max_seq_len),
    )
    return ExecutorStep(
        name=name,
        fn=train_lm,
        config=TrainLmConfig(
            model=model,
            train=train,
            data=mixture,
            tokenizer=marin_tokenizer,
            vocab_size=vocab_size,
            output_path=this_output_path(),
        ),
        resources=train.resources,
    )


def phases_text(phases: Sequence[Phase], seq_len: int) -> str:
    """A line for each phase, for people."""
    lines = []
    for start, phase in zip(first_steps(phases, seq_len), phases, strict=False):
        most = sorted(phase.mixture.items(), key=lambda item: -item[1])
        total = sum(phase.mixture.values())
        shown = ", ".join(f"{name} {weight / total:.1%}" for name, weight in most[:3])
        more = f" and {len(most) - 3} more" if len(most) > 3 else ""
        lines.append(
            f"  {phase.name:<10} from step {start:>9,}  {phase.tokens / 1e12:6.2f}T tokens  {phase.batch_size:>5,} sequences a step"
            f"  {shown}{more}"
        )
    return "\n".join(lines)
