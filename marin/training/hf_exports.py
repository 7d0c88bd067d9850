"""Exports of a run's model in Hugging Face's layout while it trains, `{run}/hf/step-{N}` for the weights after N steps.

An export is complete or absent. One that a kill cut short is made up for when the run continues, from the checkpoint of the
same step or when that step is taken again.
"""

from pathlib import Path

from marin.errors import ConfigError
from marin.execution.attempts import usual_path
from marin.models.hf_export import check_exportable, export_parameters
from marin.models.hf_layout import parameters_of
from marin.parallel import distributed
from marin.storage import files
from marin.training.config import TrainLmConfig
from marin.training.state import TrainState, evaluation_model


class HfExporter:
    """Writes the model that evaluation scores (the average of the weights where one is kept), with the run's tokenizer.

    It must have seen the state that training begins with (`check`).
    """

    def __init__(self, config: TrainLmConfig, directory: Path) -> None:
        self._config, self._directory = config, directory / "hf"
        train = config.train
        asked = train.steps_per_hf_export
        self._every: int | None = train.steps_per_export if asked is None else asked
        self._last = train.num_train_steps if asked not in (None, -1) else None
        if asked == -1 or (asked is None and train.steps_per_export > train.num_train_steps):
            self._every = None

    def check(self, state: TrainState) -> None:
        """Whether the layout can say the model; exports that nobody asked for by name are left out where it cannot.

        Raises:
            ConfigError: if `steps_per_hf_export` asks for them.
        """
        if self._every is None:
            return
        try:
            check_exportable(state.model, self._config.model)
        except ConfigError as error:
            asked = self._config.train.steps_per_hf_export
            if asked is not None:
                raise ConfigError(
                    f"config field `steps_per_hf_export` is {asked}, but {error}: `steps_per_hf_export=-1` trains it without"
                ) from None
            print(f"note: no export in Hugging Face's layout: {error}")
            self._every = None

    def is_due(self, done: int) -> bool:
        """Whether the weights after `done` steps are exported."""
        return self._every is not None and done > 0 and (done % self._every == 0 or done == self._last)

    def is_due_at_end(self, done: int) -> bool:
        """The same where `done` steps turn out to be all."""
        return self.is_due(done) or (self._every is not None and self._last is not None)

    def export(self, state: TrainState, done: int) -> str:
        """Writes the weights after `done` steps, in place of what an earlier process wrote for them; returns where.

        Of several processes the first writes; the others bring it their parts, one array at a time.
        """
        folder = self._directory / f"step-{done}"
        parameters = parameters_of(evaluation_model(state))
        if distributed.is_main():
            files.remove_tree(str(folder))
            tokenizer = str(self._config.tokenizer)
            export_parameters(parameters, self._config.model, tokenizer, folder, step=done, read=distributed.whole)
        else:
            for array in parameters.values():
                distributed.whole(array)
        distributed.meet("after an export")
        return usual_path(str(folder))

    def make_up(self, state: TrainState, done: int, *, at_end: bool) -> None:
        """Exports the weights that a run continues from, or ended with, if they are due and not there."""
        is_due = self.is_due_at_end(done) if at_end else self.is_due(done)
        if is_due and not distributed.of_main((self._directory / f"step-{done}").exists()):
            print(f"exported to {self.export(state, done)}")
