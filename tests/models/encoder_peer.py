"""Run by a Python that has torch and transformers: makes encoders there, and says what they compute.

python encoder_peer.py make FOLDER       weights by transformers, hidden states of some texts
python encoder_peer.py read FOLDER       hidden states of weights that this project wrote
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel, BertTokenizer, RobertaConfig, RobertaModel

ROWS, TOKENS, VOCAB = 3, 24, 99
SIZES = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=40,
)
TEXTS = ["The quick brown fox.", "naïve café, 東京 and ümlauts!", "unaffable unknownword 42", "", "a" * 150]
WORDS = [
    *(
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "quick",
        "brown",
        "fox",
        ".",
        ",",
        "!",
        "and",
        "un",
        "##aff",
    ),
    *("##able", "naive", "cafe", "umlaut", "##s", "東", "京", "4", "##2", "known"),
]


def inputs() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.integers(5, VOCAB, (ROWS, TOKENS)), np.array([TOKENS, 7, 1])


def states(model) -> np.ndarray:
    tokens, lengths = inputs()
    mask = (np.arange(TOKENS)[None] < lengths[:, None]).astype(np.int64)
    with torch.no_grad():
        ids = np.where(mask == 1, tokens, 1)  # RoBERTa counts positions by what is no padding
        out = model.eval()(torch.tensor(ids), attention_mask=torch.tensor(mask), output_hidden_states=True)
    return np.stack([each.numpy() for each in out.hidden_states])


def make(folder: Path) -> None:
    torch.manual_seed(0)
    models = {
        "bert": BertModel(BertConfig(**SIZES, initializer_range=0.2)),
        "roberta": RobertaModel(RobertaConfig(**SIZES, initializer_range=0.2, type_vocab_size=1, pad_token_id=1)),
    }
    for name, model in models.items():
        with torch.no_grad():  # biases and normalizations that a mistake would show in
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        model.save_pretrained(folder / name)
        np.save(folder / f"{name}.npy", states(model))
    (folder / "bert" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tokenizer = BertTokenizer(str(folder / "bert" / "vocab.txt"))
    rows = [tokenizer(text, truncation=True, max_length=12)["input_ids"] for text in TEXTS]
    np.savez(folder / "ids.npz", **{str(index): np.array(row) for index, row in enumerate(rows)})


def read(folder: Path) -> None:
    np.save(folder / "ours.npy", states(BertModel.from_pretrained(folder / "ours")))


if __name__ == "__main__":
    {"make": make, "read": read}[sys.argv[1]](Path(sys.argv[2]))
