"""Llama 3's 8B shape on 256 TPU v5p chips, in the phases of Marin's public 8B run.

    python -m experiments.marin_8b

prints tokens, FLOPs, hours and the memory of each device without allocating anything; see `experiments/sharding_plan.py` for its
flags and for training.

The phases, their tokens, batches and data follow the public retrospective of that run (marin-community/marin,
docs/reports/marin-8b-retro.md), which was not planned: it grew while it ran. Simplified here: one peak rate of 1.7e-3 (the
first phase had 1e-3 and cyclic decays), two cycles of warmup, plateau and linear decay to a hundredth (the first went to a tenth),
z-loss throughout (it came with the last phase), and the finer parts of Nemotron-CC as one. Rates hold for the batches named here.

The token caches are read below the prefix, at `tokenized/NAME` (see docs/tutorials/prepare-data.md for making one).
"""

from experiments.data_phases import Phase, batch_sizes, first_steps, phased_step
from experiments.llama import llama3_tokenizer_vocab_size
from experiments.sharding_plan import main
from experiments.simple_train_config import SimpleTrainConfig
from marin.models.llama import LlamaConfig
from marin.nn import RotaryConfig
from marin.optim import AdamConfig
from marin.resources import TpuPodConfig

VOCAB_SIZE = llama3_tokenizer_vocab_size

marin_8b = LlamaConfig(
    seq_len=4096,
    hidden_dim=4096,
    intermediate_dim=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    rope=RotaryConfig(theta=500_000),
)

_DCLM = {"dclm_baseline": 0.926, "starcoder": 0.061, "proofpile_2": 0.013}
_NEMOTRON = {"nemotron_cc": 0.9723, "starcoder": 0.0227, "proofpile_2": 0.005}

PHASES = (
    Phase("kestrel", 2.7e12, 1024, _DCLM),
    Phase("ocelot", 1.08e12, 3072, _DCLM),
    Phase(
        "jellyfish",
        1.0e12,
        3072,
        {
            "dolmino_dclm_hq": 0.678,
            "pes2o": 0.108,
            "finemath_3_plus": 0.063,
            "dolma_arxiv": 0.052,
            "dolma_stackexchange": 0.032,
            "starcoder": 0.022,
            "dolma_algebraic_stack": 0.021,
            "dolma_open_web_math": 0.009,
            "dolma_megawika": 0.008,
            "dolma_wikipedia": 0.007,
        },
    ),
    Phase("phoenix", 6.32e12, 3072, _NEMOTRON),
    Phase(
        "starling",
        1.34e12,
        4096,
        {
            "nemotron_cc": 0.701,
            "marin_arxiv_markdown": 0.052,
            "pes2o": 0.052,
            "starcoder": 0.045,
            "proofpile_2": 0.045,
            "finemath_3_plus": 0.03,
            "dolmino_flan": 0.03,
            "dolmino_stackexchange": 0.015,
            "marin_stackexchange_markdown": 0.015,
        },
    ),
)

_STARTS = first_steps(PHASES, marin_8b.seq_len)
_REHEATING = _STARTS[3]  # where phoenix begins, after the first cooldown

train_config = SimpleTrainConfig(
    TpuPodConfig("v5p-512"),
    train_batch_size=batch_sizes(PHASES, marin_8b.seq_len),
    num_train_steps=_STARTS[-1],
    learning_rate=1.7e-3,
    optimizer_config=AdamConfig(
        learning_rate=1.7e-3,
        weight_decay=0.05,
        warmup=2000,
        rewarmup=2000,
        # A share of each cycle: jellyfish and starling are 10 % and 14 % of the steps of theirs.
        decay=0.11,
        min_lr_ratio=0.01,
        lr_schedule="linear",
        cycle_length=[_REHEATING, _STARTS[-1] - _REHEATING],
    ),
    z_loss_weight=1e-4,
    ema_beta=0.995,
)

train_step = phased_step("checkpoints/marin_8b", marin_8b, VOCAB_SIZE, train_config, PHASES)

if __name__ == "__main__":
    main(marin_8b, VOCAB_SIZE, train_config, phases=PHASES, step=train_step)
