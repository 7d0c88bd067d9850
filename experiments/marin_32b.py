"""A 32B shape with QK norm (Qwen3's, on Llama 3's vocabulary) on 256 TPU v5p chips, in the phases of Marin's public 32B run.

    python -m experiments.marin_32b

See `experiments/marin_8b.py`, also for where the token caches are read. Phases, batches, data and the optimizer follow the public
retrospective (marin-community/marin, docs/reports/marin-32b-retro.md). Simplified here: QK norm from the first step (there it
came after 80,000 steps of loss spikes), one batch size, and no return to an earlier checkpoint.
"""

from experiments.data_phases import Phase, batch_sizes, first_steps, phased_step
from experiments.llama import llama3_tokenizer_vocab_size
from experiments.sharding_plan import main
from experiments.simple_train_config import SimpleTrainConfig
from marin.models.llama import LlamaConfig
from marin.nn import RmsNormConfig, RotaryConfig
from marin.optim import AdamConfig
from marin.resources import TpuPodConfig

VOCAB_SIZE = llama3_tokenizer_vocab_size

marin_32b = LlamaConfig(
    seq_len=4096,
    hidden_dim=5120,
    intermediate_dim=27648,
    num_layers=64,
    num_heads=40,
    num_kv_heads=8,
    qk_norm=RmsNormConfig(),
    rope=RotaryConfig(theta=500_000),
)

_TOKENS_PER_STEP = 8192 * marin_32b.seq_len

PHASES = (
    Phase(
        "plateau",
        160_000 * _TOKENS_PER_STEP,
        8192,
        {
            "nemotron_cc/medium": 0.3069,
            "nemotron_cc/hq_synth": 0.2470,
            "nemotron_cc/medium_low": 0.1398,
            "nemotron_cc/hq_actual": 0.0830,
            "nemotron_cc/medium_high": 0.0749,
            "nemotron_cc/low_actual": 0.0637,
            "nemotron_cc/low_synth": 0.0570,
            "starcoder": 0.0227,
            "proofpile_2": 0.0050,
        },
    ),
    Phase(
        "mantis",
        32_000 * _TOKENS_PER_STEP,
        8192,
        {
            "nemotron_cc/medium": 0.2149,
            "nemotron_cc/hq_synth": 0.1729,
            "nemotron_cc/medium_low": 0.0979,
            "nemotron_cc/hq_actual": 0.0581,
            "nemotron_cc/medium_high": 0.0524,
            "nemotron_cc/low_actual": 0.0446,
            "nemotron_cc/low_synth": 0.0399,
            "megamath/web": 0.0557,
            "megamath/text_code_block": 0.0424,
            "megamath/web_pro": 0.0127,
            "megamath/translated_code": 0.0061,
            "megamath/qa": 0.0059,
            "marin_arxiv_markdown": 0.0454,
            "pes2o": 0.0454,
            "finemath_3_plus": 0.0266,
            "dolmino_flan": 0.0266,
            "dolmino_stackexchange": 0.0134,
            "marin_stackexchange_markdown": 0.0134,
            "starcoder": 0.0159,
            "proofpile_2": 0.0035,
            "marin_wikipedia_markdown": 0.0029,
            "dolmino_wiki": 0.0029,
            "medu_science_qa": 0.0009,
        },
    ),
)

_STARTS = first_steps(PHASES, marin_32b.seq_len)

train_config = SimpleTrainConfig(
    TpuPodConfig("v5p-512"),
    train_batch_size=batch_sizes(PHASES, marin_32b.seq_len),
    num_train_steps=_STARTS[-1],
    learning_rate=7e-4,
    optimizer_config=AdamConfig(
        learning_rate=7e-4,
        weight_decay=0.05,
        max_grad_norm=0.2,
        warmup=0.01,
        decay=_STARTS[-1] - _STARTS[1],
        min_lr_ratio=0.01,
        lr_schedule="linear",
    ),
    per_device_parallelism=4,
    z_loss_weight=1e-4,
    ema_beta=0.995,
    skip_bad_steps=True,
)

train_step = phased_step("checkpoints/marin_32b", marin_32b, VOCAB_SIZE, train_config, PHASES)

if __name__ == "__main__":
    main(marin_32b, VOCAB_SIZE, train_config, phases=PHASES, step=train_step)
