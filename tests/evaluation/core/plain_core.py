"""CORE once more, as plainly as it can be written: one example at a time, whole sequences, all logits, Jinja templates.

Nothing of `marin.evaluation` is used. Prompts, draws and comparisons follow section 1 of the reference on Time-to-GPT-2.
"""

import random
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jinja2 import Template

_EXAMPLES = "{% for shot in shots %}%s\n\n{% endfor %}"
_CHOICE = Template(
    _EXAMPLES.replace("%s", "{{ shot.query }}{{ gap }}{{ shot.choices[shot.gold] }}")
    + "{{ item.query }}{{ gap }}{{ option }}"
)
_SCHEMA = Template(
    _EXAMPLES.replace("%s", "{{ shot.context_options[shot.gold] }}{{ gap }}{{ shot.continuation }}")
    + "{{ option }}{{ gap }}{{ item.continuation }}"
)
_CLOZE = Template(
    _EXAMPLES.replace("%s", "{{ shot.context | trim }}{{ gap }}{{ shot.continuation }}")
    + "{{ item.context | trim }}{{ gap }}{{ option }}"
)


def shuffled(items: list[Any], limit: int) -> list[Any]:
    items = list(items)
    random.Random(1337).shuffle(items)
    return items[:limit] if limit > 0 else items


def texts_of(kind: str, items: list[Any], number: int, num_shots: int, gap: str) -> list[str]:
    """The prompts of an item; of a cloze its prompt without the continuation and with it."""
    others = [i for i in range(len(items)) if i != number]
    shots = [items[i] for i in random.Random(1234 + number).sample(others, num_shots)]
    item, common = items[number], {"shots": shots, "gap": gap, "item": items[number]}
    if kind == "multiple_choice":
        return [_CHOICE.render(option=choice, **common) for choice in item["choices"]]
    if kind == "schema":
        return [_SCHEMA.render(option=context, **common) for context in item["context_options"]]
    return [_CLOZE.render(option="", **common).strip(), _CLOZE.render(option=item["continuation"], **common)]


def judge(
    model: Any,
    tokenizer: Any,
    kind: str,
    items: list[Any],
    number: int,
    num_shots: int,
    gap: str,
    limit: int | None = None,
) -> tuple[bool, list[float]]:
    """Whether the model gets the item right, and the mean loss of each of its sequences."""
    texts = texts_of(kind, items, number, num_shots, gap)
    sequences = [[tokenizer.bos_id, *tokenizer.encode(text)] for text in texts]
    if kind == "multiple_choice":
        first = 0
        while all(first < len(s) and s[first] == sequences[0][first] for s in sequences):
            first += 1
        starts = [first] * len(sequences)
    elif kind == "schema":
        last = 0
        while all(last < len(s) and s[-1 - last] == sequences[0][-1 - last] for s in sequences):
            last += 1
        starts = [len(s) - last for s in sequences]
    else:
        without, whole = sequences
        assert whole[: len(without)] == without and len(whole) > len(without)
        starts, sequences = [len(without)], [whole]
    means, greedy = [], []
    for sequence, start in zip(sequences, starts, strict=True):
        cut = max(0, len(sequence) - limit) if limit else 0
        mean, hit = _score(model, sequence[cut:], start - cut)
        means.append(mean)
        greedy.append(hit)
    if kind == "language_modeling":
        return greedy[0], means
    return means.index(min(means)) == items[number]["gold"], means


def _score(model: Any, tokens: list[int], start: int) -> tuple[float, bool]:
    # Padded behind, where a causal model does not look, so that JAX compiles a few lengths and not hundreds.
    padded = tokens + [0] * (-len(tokens) % 256)
    logits = np.asarray(_logits(model, jnp.asarray([padded], jnp.int32))[0], np.float64)
    top = logits.max(axis=1, keepdims=True)
    log_totals = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
    losses = [log_totals[i - 1] - logits[i - 1, tokens[i]] for i in range(start, len(tokens))]
    hits = [int(logits[i - 1].argmax()) == tokens[i] for i in range(start, len(tokens))]
    return (float(np.mean(losses)) if losses else float("nan")), all(hits)


@eqx.filter_jit
def _logits(model: Any, tokens_1T: Any) -> Any:
    logits = (model.activations(tokens_1T, None) @ model.lm_head_DV).astype(jnp.float32)
    cap = model.logit_softcap
    return logits if cap is None else cap * jnp.tanh(logits / cap)
