"""Llama 3's 8B shape on 256 TPU v5p chips: the sharding plan of its training step.

    python -m experiments.marin_8b

traces and shards the step without allocating anything and prints the memory of each device; `--devices 64` plans for
another number. Seconds on a laptop; nothing is trained.
"""

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

train_config = SimpleTrainConfig(
    TpuPodConfig("v5p-512"),
    train_batch_size=1024,
    num_train_steps=100_000,
    learning_rate=2e-3,
    optimizer_config=AdamConfig(learning_rate=2e-3, weight_decay=0.05, warmup=1000),
    ema_beta=0.995,
)

if __name__ == "__main__":
    main(marin_8b, VOCAB_SIZE, train_config)
