"""Runs of seconds on one processor core, for experiments that anyone can repeat: what small experiments share.

A Llama of two layers and width 64 reads a few hundred thousand bytes of the embedded corpus and is scored on held-out
documents. Nothing follows from such a run for models of a useful size; what can be learned is whether an effect is there at all
at this size, and how an experiment is done.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from experiments.python_docs import python_docs
from marin.data.cache import tokenize_step
from marin.data.conversation import SPECIAL_TOKENS
from marin.data.tokenizer import Tokenizer, train_tokenizer_step
from marin.evaluation import EvalSet, bits_per_byte
from marin.execution.step import ExecutorStep, placement, this_output_path
from marin.finetuning.conversations import ConversationsConfig, tokenize_conversations
from marin.finetuning.origin import FinetuneRates, Origin
from marin.finetuning.sft import SftConfig, train_sft
from marin.models import LlamaConfig
from marin.nn import Precision, RmsNormConfig
from marin.optim import OptimizerConfig
from marin.parallel.mesh import ambient, run_mesh
from marin.resources import CpuOnlyConfig, Resources
from marin.storage import files
from marin.training import SimpleTrainConfig, TrainLmConfig, WatchConfig
from marin.training.loop import train_lm
from marin.training.state import evaluation_model

RESULT_FILE = "result.json"
VOCAB_SIZE = 512
BATCH_SIZE = 8
NUM_STEPS = 100
NUM_EVALUATIONS = 5
NUM_DOCUMENTS = 40  # of the held-out ones; the first
RESOURCES = CpuOnlyConfig(num_cpus=2)
MODEL = LlamaConfig(
    seq_len=64,
    hidden_dim=64,
    intermediate_dim=160,
    num_layers=2,
    num_heads=2,
    num_kv_heads=2,
    qk_norm=RmsNormConfig(),
    gradient_checkpointing=False,
    cross_entropy_block_size=512,
)

tokenizer = train_tokenizer_step(python_docs / "train.jsonl.zst", VOCAB_SIZE, special_tokens=SPECIAL_TOKENS)
tokenized = tokenize_step(f"python_docs-{VOCAB_SIZE}-chat", python_docs / "train.jsonl.zst", tokenizer)


# --- pretraining --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SmallRunConfig:
    """A training run, and how many of the held-out documents it is scored on."""

    marin_resumable: ClassVar[bool] = True

    train: TrainLmConfig
    documents: Any
    num_documents: int = NUM_DOCUMENTS
    output_path: str = this_output_path()


def small_run(
    name: str = "small_run",
    *,
    seed: int,
    optimizer: OptimizerConfig,
    num_steps: int = NUM_STEPS,
    train: Mapping[str, Any] | None = None,
) -> ExecutorStep:
    """A step that trains the small model and writes `bits_per_byte` into `result.json`.

    Args:
        seed: of the initial weights and of the order of the data.
        train: further fields of `SimpleTrainConfig`, such as {"z_loss_weight": 1e-4}.
    """
    config = SimpleTrainConfig(
        RESOURCES,
        train_batch_size=BATCH_SIZE,
        num_train_steps=num_steps,
        learning_rate=optimizer.learning_rate,
        optimizer_config=optimizer,
        seed=seed,
        data_seed=seed,
        steps_per_eval=max(1, num_steps // NUM_EVALUATIONS),
        steps_per_hf_export=-1,
        precision=Precision("f32"),
        watch=WatchConfig(watch_targets=[]),
        **(train or {}),
    )
    run = TrainLmConfig(MODEL, config, tokenized, tokenizer, VOCAB_SIZE, this_output_path())
    return ExecutorStep(name, train_small, SmallRunConfig(run, python_docs / "heldout.jsonl.zst"))


def train_small(config: SmallRunConfig) -> None:
    """Trains, measuring bits per byte on the way and at the end."""
    train = config.train
    words = Tokenizer.load(train.tokenizer)
    documents = EvalSet.read("python_docs heldout", config.documents).documents[: config.num_documents]
    held_out = EvalSet("python_docs heldout, the first documents", documents)

    def measure(model: Any, max_batches: int | None) -> dict[str, float]:
        context = train.model.max_seq_len
        measured = bits_per_byte(
            model, held_out, words, context, precision=Precision("f32"), batch_size=64, max_batches=max_batches
        )
        return {"bits_per_byte": measured.value}

    state = train_lm(train, evaluate=measure)
    with ambient(run_mesh(train.train.resources, train.train.parallelism)):
        result = measure(evaluation_model(state), None)
    files.write_json(files.join(config.output_path, RESULT_FILE), {**result, "num_documents": len(documents)})
    print(f"bits per byte {result['bits_per_byte']:.4f}")


# --- finetuning ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class MadeConversationsConfig:
    """Conversations that the project makes, for the small model's tokenizer."""

    tokenizer: Any
    num_conversations: int
    max_tokens: int
    output_path: str = this_output_path()


def make_conversations(config: MadeConversationsConfig) -> None:
    """Makes and tokenizes them; what is held out stands beside."""
    tokenize_conversations(
        ConversationsConfig(
            tokenizer_digest=Tokenizer.load(config.tokenizer).digest,
            tokenizer=config.tokenizer,
            max_tokens=config.max_tokens,
            made=config.num_conversations,
            output_path=config.output_path,
        )
    )


conversations = ExecutorStep(
    "small_conversations", make_conversations, MadeConversationsConfig(tokenizer, 2000, MODEL.seq_len)
)


@dataclasses.dataclass(frozen=True)
class SmallSftConfig:
    """Finetuning of a small run at a rate that does not depend on how it was pretrained."""

    marin_resumable: ClassVar[bool] = True

    base: Any
    conversations: Any
    learning_rate: float
    num_steps: int
    seed: int
    resources: Resources = placement(default=RESOURCES)
    output_path: str = this_output_path()


def small_sft(name: str, base: ExecutorStep, *, learning_rate: float, num_steps: int, seed: int) -> ExecutorStep:
    """A step that finetunes `base` on made conversations with Adam and writes the loss of answers, `val_bpb`, into `sft.json`."""
    config = SmallSftConfig(base, conversations, learning_rate, num_steps, seed)
    return ExecutorStep(name, finetune_small, config)


def finetune_small(config: SmallSftConfig) -> None:
    origin = Origin.open(str(config.base))
    train_sft(
        SftConfig(
            config.resources,
            config.conversations,
            origin.digest,
            FinetuneRates(matrix_lr=config.learning_rate, init_lr_frac=1.0),
            num_iterations=config.num_steps,
            load_optimizer=False,
            seed=config.seed,
            origin=str(origin.checkpoint.path),
            eval_every=max(1, config.num_steps // NUM_EVALUATIONS),
            eval_tokens=16_384,
            chatcore_every=0,
            output_path=config.output_path,
        )
    )
