"""One run of an ablation: a language model trained by the engine on one arm's data, scored on the evaluation sets."""

from typing import Any

from marin.data.cache import TokenCache
from marin.data.mixture import Mixture
from marin.data.tokenizer import Tokenizer
from marin.datashop.ablation import EVALUATION_FILE, AblationModel, AblationRunConfig
from marin.errors import ConfigError
from marin.evaluation import EvalSet, bits_per_byte
from marin.models.llama import LlamaConfig
from marin.models.lm import count_parameters
from marin.nn import RmsNormConfig
from marin.nn.precision import Precision, compute_on
from marin.optim import MuonConfig
from marin.parallel import distributed
from marin.parallel.mesh import ambient, run_mesh
from marin.storage import files
from marin.tracking import RunRecord
from marin.training import SimpleTrainConfig, TrainLmConfig, WatchConfig
from marin.training.config_json import config_to_json
from marin.training.loop import train_lm
from marin.training.state import evaluation_model


def train_arm(config: AblationRunConfig) -> None:
    """Trains, or goes on, and writes `evaluation.json`; a kill during scoring repeats only that.

    Raises:
        ConfigError: `tokens` is less than one step.
        DataError: an evaluation set cannot be read.
    """
    train = training_config(config)
    tokenizer = Tokenizer.load(str(config.tokenizer))
    sets = {name: EvalSet.read(name, str(path)) for name, path in config.eval_sets.items()}
    state = train_lm(train)
    with distributed.taking_part(), ambient(run_mesh(train.train.resources, train.train.parallelism)):
        model = evaluation_model(state)
        precision = Precision(RunRecord.open(str(config.output_path)).info["precision"])
        measured = {
            name: bits_per_byte(model, each, tokenizer, train.model.max_seq_len, precision=precision)
            for name, each in sets.items()
        }
    if not distributed.is_main():
        return
    steps = RunRecord.open(str(config.output_path)).of("end")[-1]["steps"]
    content: dict[str, Any] = {
        "bits_per_byte": {name: found.value for name, found in measured.items()},
        "eval_digests": {name: found.digest for name, found in measured.items()},
        "eval_bytes": {name: found.num_bytes for name, found in measured.items()},
        "tokens": steps * config.recipe.sequences * train.model.max_seq_len,
        "seed": config.seed,
        "epochs": _epochs(config, train.total_tokens),
        "model": config_to_json(train.model, omit_defaults=True),
        "parameters": count_parameters(model),
    }
    files.write_json(files.join(str(config.output_path), EVALUATION_FILE), content)


def training_config(config: AblationRunConfig) -> TrainLmConfig:
    """What the training engine is given.

    Raises:
        ConfigError: `tokens` is less than one step.
    """
    recipe = config.recipe
    model = recipe.model or default_model(recipe)
    steps = config.tokens // (recipe.sequences * model.max_seq_len)
    if steps < 1:
        raise ConfigError(
            f"`tokens` of the ablation is {config.tokens:,}, a step takes {recipe.sequences} x {model.max_seq_len}: use more"
        )
    optimizer = recipe.optimizer or MuonConfig(
        learning_rate=recipe.learning_rate,
        adam_lr=recipe.adam_lr,
        weight_decay=0.0,
        warmup=0,
        decay=0.6,
        min_lr_ratio=0.0,
        momentum=0.9,
        beta1=0.8,
        backend_steps=4,
    )
    return TrainLmConfig(
        model=model,
        train=SimpleTrainConfig(
            config.resources,
            train_batch_size=recipe.sequences,
            num_train_steps=steps,
            learning_rate=optimizer.learning_rate,
            optimizer_config=optimizer,
            data_seed=config.seed,
            seed=config.seed,
            # Named, as a processor would else choose by what it measures, and arms could differ.
            precision=Precision(compute_on(config.resources.platform)),
            steps_per_hf_export=-1,
            checkpoint_interval=config.checkpoint_interval,
            watch=WatchConfig(watch_targets=[]),
        ),
        data=_data(config),
        tokenizer=str(config.tokenizer),
        vocab_size=Tokenizer.load(str(config.tokenizer)).vocab_size,
        output_path=str(config.output_path),
        run_name=config.run_name,
        tags=("datashop", "ablation"),
    )


def default_model(recipe: AblationModel) -> LlamaConfig:
    """The Llama that is trained where the recipe names no model."""
    return LlamaConfig(
        seq_len=recipe.seq_len,
        hidden_dim=recipe.hidden_dim,
        intermediate_dim=8 * recipe.hidden_dim // 3 // 16 * 16,
        num_layers=recipe.num_layers,
        num_heads=recipe.num_heads,
        num_kv_heads=recipe.num_heads,
        qk_norm=RmsNormConfig(),
        gradient_checkpointing=False,
        cross_entropy_block_size=512,
    )


def _data(config: AblationRunConfig) -> Any:
    if len(config.data) == 1:
        return str(next(iter(config.data.values())))
    return Mixture({name: str(path) for name, path in config.data.items()}, dict(config.weights))


def _epochs(config: AblationRunConfig, tokens: int) -> float:
    """The most passes that training makes over one of the caches."""
    return max(
        config.weights[name] * tokens / max(1, len(TokenCache.open(str(path)))) for name, path in config.data.items()
    )
