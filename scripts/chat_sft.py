"""Finetunes a base model on conversations, into BASE/chatsft_checkpoints.

    python -m scripts.chat_sft                     # SmolTalk, MMLU and GSM8K, fetched where they are not there
    python -m scripts.chat_sft --made 20000        # conversations that the project makes: no network
    python -m scripts.chat_sft --dataset chats.jsonl --made 5000

Run again, it continues where it was, or says that there is nothing to do.
"""

import dataclasses
from typing import TYPE_CHECKING

from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError, DataError
from marin.execution.step import ExecutorStep
from marin.gpt2.command import (
    check_numbers,
    flags_table,
    keep_off_wandb_unless_named,
    parse_flags,
    run_command,
    run_name,
)
from marin.gpt2.places import Places
from marin.gpt2.stages import process_index, report_section, run_stage, seen_by_others, stage
from marin.resources import CpuOnlyConfig

if TYPE_CHECKING:  # what imports JAX is imported where it is used, as `--help` does not need it
    from marin.finetuning.conversations import ConversationsConfig
    from marin.finetuning.origin import Origin
    from marin.finetuning.sft import SftConfig


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of chat_sft. Those that are None take what the base run had.

    Args:
        run: name on W&B; "dummy" does not log there.
        device_type: auto, cpu, cuda, or a TPU slice such as v6e-8.
        model_tag: the base run to begin from, and the name of this one; the deepest by default.
        model_step: its checkpoint; the newest by default.
        load_optimizer: 1 to begin with the moments of the base run's optimizer, 0 without.
        num_iterations: steps; -1 for once through the conversations.
        max_seq_len: tokens of a row; a conversation is cut there.
        device_batch_size: rows that a device takes at once.
        total_batch_size: tokens a step.
        embedding_lr: of token embeddings, times init_lr_frac but scaled by no width or batch, unlike that of base_train; so are the next two.
        unembedding_lr: of the head.
        matrix_lr: of the matrices.
        init_lr_frac: share of the base run's rates to begin with.
        warmup_ratio: share of the steps over which rates rise.
        warmdown_ratio: share of the steps at the end over which they fall.
        final_lr_frac: what they fall to.
        eval_every: steps between measurements of the loss on held-out conversations; -1 for the end only.
        eval_tokens: tokens of a measurement in between.
        chatcore_every: steps between asking chat tasks, the last step included; -1 for never. Several processes ask none.
        chatcore_max_cat: questions of a multiple-choice task; -1 for all.
        chatcore_max_sample: questions of a task whose answers are generated; -1 for all.
        mmlu_epochs: how often each question of MMLU stands in the data.
        gsm8k_epochs: how often each question of GSM8K stands in the data.
        made: conversations to make: spelling, letter counting, arithmetic, facts about the model.
        public: take SmolTalk, MMLU and GSM8K; by default where neither made nor dataset is given.
        dataset: files or folders with conversations (.jsonl, .parquet), in rows with `messages`, or `prompt` and `response`.
        checkpoint_interval: seconds between checkpoints to resume from.
        seed: of the order of the data and of what is made.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    run: str = "dummy"
    device_type: str = ""
    model_tag: str | None = None
    model_step: int | None = None
    load_optimizer: int = 1
    num_iterations: int = -1
    max_seq_len: int | None = None
    device_batch_size: int | None = None
    total_batch_size: int | None = None
    embedding_lr: float | None = None
    unembedding_lr: float | None = None
    matrix_lr: float | None = None
    init_lr_frac: float = 0.8
    warmup_ratio: float = 0.0
    warmdown_ratio: float = 0.5
    final_lr_frac: float = 0.0
    eval_every: int = 200
    eval_tokens: int = 40 * 524_288
    chatcore_every: int = 200
    chatcore_max_cat: int = -1
    chatcore_max_sample: int = 24
    mmlu_epochs: int = 3
    gsm8k_epochs: int = 4
    made: int = 0
    public: bool | None = None
    dataset: tuple[str, ...] = ()
    checkpoint_interval: float = 600.0
    seed: int = 42
    base_dir: str | None = None

    def __post_init__(self) -> None:
        if self.load_optimizer not in (0, 1):
            raise ConfigError(
                f"`--load-optimizer` is {self.load_optimizer}: use 1 for the base run's moments, 0 for none"
            )
        if self.max_seq_len is not None and self.max_seq_len < 2:
            raise ConfigError(
                f"`--max-seq-len` is {self.max_seq_len}: use at least 2, or leave it out for that of the base run"
            )
        check_numbers(
            self,
            ("device_batch_size", "total_batch_size", "eval_tokens", "checkpoint_interval"),
            ("num_iterations", "eval_every", "chatcore_every", "chatcore_max_cat", "chatcore_max_sample"),
        )
        _ = self.conversations, self.config

    @property
    def takes_public(self) -> bool:
        """Whether the public data is learned from."""
        return not (self.made or self.dataset) if self.public is None else self.public

    @property
    def conversations(self) -> "ConversationsConfig":
        """What the flags say by themselves of what to train on."""
        from marin.finetuning.conversations import ConversationsConfig
        from marin.finetuning.sources import LocalFile

        return ConversationsConfig(
            tokenizer_digest="",
            max_tokens=2 if self.max_seq_len is None else self.max_seq_len,
            made=self.made,
            made_seed=self.seed,
            public=self.takes_public,
            local=tuple(LocalFile(path, "") for path in self.dataset),
            mmlu_epochs=self.mmlu_epochs,
            gsm8k_epochs=self.gsm8k_epochs,
        )

    @property
    def config(self) -> "SftConfig":
        """What the flags say of the stage's config by themselves."""
        from marin.finetuning.chat_scores import ChatEvalOptions
        from marin.finetuning.origin import FinetuneRates
        from marin.finetuning.sft import SftConfig

        return SftConfig(
            CpuOnlyConfig(),
            "",
            "",
            FinetuneRates(
                self.embedding_lr,
                self.unembedding_lr,
                self.matrix_lr,
                self.init_lr_frac,
                self.warmup_ratio,
                self.warmdown_ratio,
                self.final_lr_frac,
            ),
            self.num_iterations,
            self.max_seq_len,
            self.total_batch_size,
            bool(self.load_optimizer),
            self.seed,
            device_batch_size=self.device_batch_size,
            eval_every=self.eval_every,
            eval_tokens=self.eval_tokens,
            chatcore_every=self.chatcore_every,
            chat_eval=ChatEvalOptions(self.chatcore_max_cat, self.chatcore_max_sample, max_new_tokens=256),
            checkpoint_interval=self.checkpoint_interval,
        )


def fetch_public(places: Places) -> None:
    """Fetches the public data where it is not there; of several processes the first does so, as all write to one place.

    Raises:
        DataError: it cannot be fetched.
    """
    from marin.evaluation.chat.datasets import download
    from marin.finetuning.sources import PUBLIC

    for splits in PUBLIC.values() if process_index() == 0 else ():
        for source in splits.values():
            try:
                download(source, places.task_data)
            except DataError as error:
                made = "or finetune on conversations that the project makes, which need no network: `--made 20000`"
                raise DataError(f"{error}; {made}") from None


def conversations_step(flags: Flags, places: Places, origin: "Origin", tag: str) -> ExecutorStep:
    """The step that tokenizes what the flags say."""
    from marin.finetuning.conversations import tokenize_conversations
    from marin.finetuning.sources import LocalFile

    config = dataclasses.replace(
        flags.conversations,
        tokenizer_digest=Tokenizer.load(origin.tokenizer).digest,
        max_tokens=origin.model.max_seq_len if flags.max_seq_len is None else flags.max_seq_len,
        local=tuple(LocalFile.of(path) for path in flags.dataset),
        tokenizer=origin.tokenizer,
        task_data=str(places.task_data),
    )
    return ExecutorStep(
        f"chatsft_data/{tag}", tokenize_conversations, config, description="conversations for finetuning"
    )


def make_config(flags: Flags, places: Places, origin: "Origin", tag: str) -> "SftConfig":
    """The stage's config."""
    from marin.gpt2.devices import take_devices

    return dataclasses.replace(
        flags.config,
        resources=take_devices(flags.device_type),
        data=conversations_step(flags, places, origin, tag),
        origin_digest=origin.digest,
        origin=str(origin.checkpoint.path),
        task_data=str(places.task_data),
        run_name=run_name(flags.run, tag),
        flags=dataclasses.asdict(flags),
    )


def main() -> None:
    flags = parse_flags(Flags, __doc__)

    from marin.finetuning.origin import Origin
    from marin.finetuning.sft import FIGURES_FILE, read_figures, train_sft

    places = Places.of(flags.base_dir)
    keep_off_wandb_unless_named(flags.run)
    base = places.find_run("base", flags.model_tag)
    origin = Origin.open(base, flags.model_step)
    config = make_config(flags, places, origin, base.name)  # refuses what it can before anything is fetched
    run = places.checkpoints("sft", base.name)
    with seen_by_others(places):
        if flags.takes_public:
            fetch_public(places)
        if process_index() == 0:
            print(f"finetuning {base.name} from its step {origin.checkpoint.step:,}, into {run}")
        output = run_stage(places, stage("chat_sft", train_sft, config, places, run), FIGURES_FILE)
    if output is None:
        return
    report_section(
        places,
        "Chat SFT",
        {
            "model": run.name,
            "begins from": f"{base.name}, step {origin.checkpoint.step}",
            **read_figures(output),
            "flags": flags_table(flags),
        },
    )


if __name__ == "__main__":
    run_command(main)
