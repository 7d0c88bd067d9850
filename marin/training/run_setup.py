"""Everything that a run needs before it is compiled: devices, data, model, optimizer, and where it begins or goes on.

What cannot run on this machine is refused here, before anything is computed; what only a model's first values show, where they are made.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import optax

from marin.data.loader import BatchRow, BatchSource, open_batches
from marin.data.rows import Batch
from marin.data.tokenizer import Tokenizer
from marin.optim.hyperball import check_radii
from marin.optim.schedule import Schedule
from marin.parallel import distributed
from marin.parallel.mesh import check_batch, run_mesh
from marin.storage import files
from marin.training.budget import budget_is_spent
from marin.training.checkpoint import Checkpoint
from marin.training.compile_cache import use_compile_cache
from marin.training.config import TrainLmConfig
from marin.training.hf_exports import HfExporter
from marin.training.placement import parameter_shapes, trace_initial_state
from marin.training.preflight import check_devices, check_tokenizer
from marin.training.run_info import check_log, check_same_data, check_same_run, read_run_info
from marin.training.starting_point import starting_point
from marin.training.state import TrainState
from marin.training.traced_flops import calls_out_of, held_bytes


@dataclasses.dataclass(frozen=True)
class RunSetup:
    """What set-up found. The state is not in it: each step gives the memory of the one before it away. Nor is the program that makes the
    first state: it may hold as much, such as weights that `build` has read.

    Args:
        shapes: the model's parameters.
        layout: the state, as shapes that say where they lie.
        initial_calls_out: by what the program calls out of itself that makes the state of a new run from its seed.
        initial_held: how much that program holds of its own, in bytes, and its largest array, in words.
        saved: the content of `run.json`, where the run was begun before.
        restored: the run's checkpoint that training goes on from, if there is one.
        first_sample: the sample of the data that step 0 begins with.
        origin_step: that of the checkpoint whose weights the run began with, if it began with such.
        at_budget: whether the run has ended at its budget, or has no room for another step.
    """

    config: TrainLmConfig
    directory: Path
    mesh: jax.sharding.Mesh
    tokenizer: Tokenizer
    source: BatchSource
    shapes: Any
    layout: TrainState
    initial_calls_out: set[str]
    initial_held: tuple[int, str]
    optimizer: optax.GradientTransformation
    rate: Schedule
    exporter: HfExporter
    saved: dict[str, Any] | None
    restored: Checkpoint | None
    first_step: int
    first_sample: int
    origin_step: int | None
    at_budget: bool

    @property
    def last_sample(self) -> int:
        """The sample behind those of the last step."""
        return self.first_sample + self.config.train.num_train_sequences

    @property
    def is_over(self) -> bool:
        return self.at_budget or self.first_step >= self.config.train.num_train_steps

    def batch_of(self, step: int, batch_size: int) -> Batch:
        """The batch of a step, on the mesh."""
        first = self.first_sample + self.config.train.batch_schedule.offset_at(step)
        return distributed.place_batch(
            lambda row, num_rows: self.source.batch_from(self.config.data_seed, first + row, num_rows),
            batch_size,
            self.mesh,
        )

    def rows_of(self, step: int) -> list[BatchRow]:
        """Where the rows of a step's batch come from."""
        schedule = self.config.train.batch_schedule
        first = self.first_sample + schedule.offset_at(step)
        return self.source.rows_from(self.config.data_seed, first, schedule.size_at(step))


def set_up(config: TrainLmConfig) -> tuple[RunSetup, Callable[[], TrainState]]:
    """What the run needs, and what gives the state that it begins or goes on with, to be called once.

    Raises:
        ConfigError, HardwareError: if the config cannot run on this machine.
        CheckpointError: if checkpoints are there and none is whole.
    """
    # ---- devices ---------------------------------------------------------------------------------------------------
    train, schedule = config.train, config.train.batch_schedule
    use_compile_cache()
    check_devices(train.resources)
    mesh = run_mesh(train.resources, train.parallelism)
    for _, batch_size in schedule.entries:
        check_batch(batch_size, config.seq_len, mesh)
    # ---- data, and what was begun before ---------------------------------------------------------------------------
    directory = files.local_path(config.output_path)
    check_same_run(config, directory)
    check_log(directory)
    tokenizer = Tokenizer.load(config.tokenizer)
    source = open_batches(config.data, config.seq_len, tokenizer.bos_id, schedule.offset_at)
    check_tokenizer(config, source, tokenizer)
    check_same_data(directory, source, tokenizer)
    # ---- model and optimizer ---------------------------------------------------------------------------------------
    shapes = parameter_shapes(config.model, config.vocab_size)
    optimizer = train.build_transformation(shapes)
    initial = trace_initial_state(config.model, config.vocab_size, optimizer, seed=train.seed, ema_beta=train.ema_beta)
    start = starting_point(config, directory, initial, mesh, optimizer, tokenizer, source)
    first_step = 0 if start.restored is None else start.restored.step
    exporter = HfExporter(config, directory)

    def first_state() -> TrainState:
        state = initial.run(mesh) if start.state is None else start.state
        if start.restored is None:
            check_radii(state.opt_state)
        exporter.check(state)
        exporter.make_up(state, first_step, at_end=setup.is_over)
        return state

    saved = read_run_info(directory)
    setup = RunSetup(
        config=config,
        directory=directory,
        mesh=mesh,
        tokenizer=tokenizer,
        source=source,
        shapes=shapes,
        layout=initial.layout(mesh),
        initial_calls_out=calls_out_of(initial.program),
        initial_held=held_bytes(initial.program),
        optimizer=optimizer,
        rate=train.build_optimizer().schedule(train.num_train_steps),
        exporter=exporter,
        saved=saved,
        restored=start.restored,
        first_step=first_step,
        first_sample=start.first_sample,
        origin_step=start.origin_step,
        at_budget=first_step > 0 and budget_is_spent(train.budget, directory, saved, first_step),
    )
    return setup, first_state
