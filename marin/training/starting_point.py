"""Where a run begins or goes on: at its own checkpoint, with the weights of another run, or anew."""

import dataclasses
import sys
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import optax

from marin.data.loader import BatchSource
from marin.data.tokenizer import Tokenizer
from marin.models.hf_import import hf_folder, initialize_from_hf, trained_steps
from marin.parallel import distributed
from marin.training import checkpoint as checkpoints
from marin.training.checkpoint import Checkpoint
from marin.training.config import TrainLmConfig
from marin.training.placement import InitialProgram, with_weights
from marin.training.run_info import note_of_other_order, note_of_other_parts, read_run_info, samples_taken
from marin.training.state import TrainState
from marin.training.warm_start import check_hf_tokenizer, optimizer_state_from, weights_from


class StartingPoint(NamedTuple):
    """Where a run begins or goes on.

    Args:
        state: None where a new one is to be made.
        restored: the run's checkpoint that holds the state, if one does.
        first_sample: the sample of the data that step 0 begins with.
        origin_step: that of the checkpoint whose weights the run began with, if it began with such.
    """

    state: TrainState | None
    restored: Checkpoint | None
    first_sample: int
    origin_step: int | None


def starting_point(
    config: TrainLmConfig,
    directory: Path,
    initial: InitialProgram,
    mesh: jax.sharding.Mesh,
    optimizer: optax.GradientTransformation,
    tokenizer: Tokenizer,
    source: BatchSource,
) -> StartingPoint:
    """The run's own newest whole checkpoint where there is one, else what the config says to begin with.

    Args:
        initial: what makes a new state, whose structure a restored one has.
    Raises:
        CheckpointError: checkpoints are there and none is whole, or what the run begins with is of another model or tokenizer.
    """
    train, begun = config.train, read_run_info(directory) or {}
    found, problems = checkpoints.latest_valid(directory / "checkpoints")
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    if found is not None:
        layout = initial.layout(mesh)
        if note := checkpoints.moved(found, layout):
            print(note)
        state = checkpoints.restore(found, layout)
        if begun and (note := note_of_other_parts(begun, config)):
            print(note)
        print(f"continuing from the checkpoint of step {found.step:,} of {train.num_train_steps:,}")
        # The run that this one began from may have gone on since, or be gone.
        return StartingPoint(state, found, begun.get("first_sample", 0), begun.get("origin_step"))
    if train.initialize_from_checkpoint_path is None and train.initialize_from_hf is None:
        return StartingPoint(None, None, 0, None)
    state = initial.run(mesh)
    params = eqx.filter(state.model, eqx.is_array)
    first_sample, origin, before = 0, None, None
    if train.initialize_from_checkpoint_path is not None:
        origin = checkpoints.find(train.initialize_from_checkpoint_path, begun.get("origin_step"))
        if not train.reset_data_loader_on_init:
            before = origin.path.parents[1]
            first_sample = samples_taken(before, origin.step, train.batch_schedule)
        params = weights_from(origin, params, config, tokenizer)
    else:
        assert train.initialize_from_hf is not None
        folder = hf_folder(train.initialize_from_hf)
        if not train.reset_data_loader_on_init:
            before = folder.resolve().parent.parent  # of an export that lies where it was written
            first_sample = samples_taken(before, trained_steps(folder), train.batch_schedule)
        check_hf_tokenizer(folder, config, tokenizer)
        params = initialize_from_hf(folder, params, config.model, partial=train.allow_partial_checkpoint)
    if before is not None and (note := note_of_other_order(before, config, source)):
        distributed.warn(note)
    state = with_weights(state, params, optimizer, seed=train.seed)
    if origin is not None and train.initialize_optimizer:
        state = dataclasses.replace(state, opt_state=optimizer_state_from(origin, state.opt_state))
    return StartingPoint(state, None, first_sample, None if origin is None else origin.step)
