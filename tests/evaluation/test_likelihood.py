"""Scores of batches are those of each sequence alone, whatever the batch, the shapes and what is shared."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.errors import ConfigError, DataError
from marin.evaluation.likelihood import Group, LikelihoodScorer
from marin.evaluation.likelihood_batches import Limits, plan, rung
from marin.models import GptConfig, LlamaConfig
from marin.models.gpt2 import Gpt2Config
from marin.nn import Precision

VOCAB = 90
CONFIGS = {
    "gpt": GptConfig(seq_len=64, hidden_dim=32, num_layers=2, num_heads=2, num_kv_heads=1),
    "llama": LlamaConfig(seq_len=64, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, num_kv_heads=2),
}


def _model(config):
    model = config.build(VOCAB, key=jax.random.key(0))
    leaves, structure = jax.tree.flatten(eqx.filter(model, eqx.is_array))
    draw = np.random.default_rng(1)  # NumPy's, as JAX compiles a program for each shape
    moved = [
        jnp.asarray(leaf + np.float32(0.1) * draw.standard_normal(leaf.shape, np.float32))
        for leaf in map(np.asarray, leaves)
    ]
    return eqx.combine(jax.tree.unflatten(structure, moved), model)


def _groups(seed: int = 0, count: int = 6) -> list[Group]:
    """Questions of 1 to 4 sequences that share 1 to 90 tokens."""
    draw = np.random.default_rng(seed)
    groups = []
    for i in range(count):
        shared = draw.integers(0, VOCAB, int(draw.integers(1, 90)))
        rows = [draw.integers(0, VOCAB, int(draw.integers(1, 14))) for _ in range((2, 1, 4, 3)[i % 4])]
        sequences = [np.concatenate([shared, row]) for row in rows]
        groups.append(Group.of(sequences, [len(shared)] * len(rows)))
    return groups


@eqx.filter_jit
def _logits(model, tokens_1T):
    return model.activations(tokens_1T, None) @ model.lm_head_DV


def _alone(model, group: Group) -> list[tuple[np.ndarray, bool]]:
    """Each sequence by itself, from all logits."""
    results = []
    for row, start in zip(group.rows, group.starts, strict=True):
        tokens = np.concatenate([group.prefix, row])
        start += len(group.prefix)
        logits = np.asarray(_logits(model, np.pad(tokens, (0, 112 - len(tokens)))[None])[0, : len(tokens)], np.float64)
        if model.logit_softcap is not None:
            logits = model.logit_softcap * np.tanh(logits / model.logit_softcap)
        losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(tokens)), np.roll(tokens, -1)]
        greedy = logits.argmax(axis=1)[start - 1 : -1] == tokens[start:]
        results.append((losses[start - 1 : -1], bool(greedy.all())))
    return results


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt", {"batch_tokens": 400}),
        ("gpt", {"batch_tokens": 1}),
        ("gpt", {"batch_tokens": 2000, "share": False}),
        ("llama", {"batch_tokens": 400}),
    ],
)
def test_scores_of_batches_are_those_of_each_sequence_alone(name, options):
    # One group a batch makes a program of each.
    model, groups = _model(CONFIGS[name]), _groups(count=3 if options["batch_tokens"] == 1 else 6)
    found = dict(LikelihoodScorer(model, **options).score(groups))
    assert sorted(found) == list(range(len(groups)))
    for number, group in enumerate(groups):
        for scored, (nats, greedy) in zip(found[number], _alone(model, group), strict=True):
            np.testing.assert_allclose(scored.nats, nats, rtol=2e-5, atol=2e-5)
            assert scored.greedy == greedy


def test_greedy_is_true_for_what_the_model_would_write():
    model = _model(CONFIGS["gpt"])
    tokens = [5, 17]
    for _ in range(5):
        logits = _logits(model, np.pad(tokens, (0, 8 - len(tokens)))[None])
        tokens.append(int(jnp.argmax(logits[0, len(tokens) - 1])))
    wrong = [*tokens[:-1], (tokens[-1] + 1) % VOCAB]
    found = dict(LikelihoodScorer(model).score([Group.of([tokens], [2]), Group.of([wrong], [2])]))
    assert found[0][0].greedy and not found[1][0].greedy


@pytest.mark.slow
def test_scores_on_a_mesh_of_devices_are_those_on_one():
    from marin.parallel.mesh import ambient, make_mesh
    from marin.parallel.sharding import state_shardings

    model, groups = _model(CONFIGS["llama"]), _groups(count=4)
    on_one = dict(LikelihoodScorer(model, batch_tokens=1024).score(groups))
    with ambient(mesh := make_mesh({"data": 2, "fsdp": 2})):
        arrays, static = eqx.partition(model, eqx.is_array)
        divided = eqx.combine(jax.device_put(arrays, state_shardings(arrays, arrays, mesh)), static)
        on_four = dict(LikelihoodScorer(divided, batch_tokens=1024).score(groups))
    for number in on_one:
        for one, other in zip(on_one[number], on_four[number], strict=True):
            np.testing.assert_allclose(one.nats, other.nats, rtol=2e-5, atol=2e-5)


def test_model_that_cannot_be_decoded_is_scored_all_the_same():
    class Bare(eqx.Module):
        """A model that the cache does not know."""

        inner: eqx.Module

        @property
        def lm_head_DV(self):
            return self.inner.lm_head_DV

        @property
        def logit_softcap(self):
            return self.inner.logit_softcap

        def activations(self, tokens_BT, segment_ids_BT):
            return self.inner.activations(tokens_BT, segment_ids_BT)

    model, groups = _model(CONFIGS["gpt"]), _groups()
    known, unknown = (dict(LikelihoodScorer(m, batch_tokens=400).score(groups)) for m in (model, Bare(model)))
    for number in known:
        for one, other in zip(known[number], unknown[number], strict=True):
            np.testing.assert_allclose(one.nats, other.nats, rtol=2e-5, atol=2e-5)


def test_model_with_a_last_position_is_scored_up_to_it_and_no_further():
    config = Gpt2Config(seq_len=20, hidden_dim=16, num_layers=1, num_heads=2)
    scorer = LikelihoodScorer(config.build(40, key=jax.random.key(0)))
    tokens = np.random.default_rng(0).integers(0, 40, 22)
    # Of 21 tokens the last is only predicted; the ladder of lengths would have 24 positions.
    ((_, (whole,)),) = scorer.score([Group.of([tokens[:21]], [1])])
    ((_, (part,)),) = scorer.score([Group.of([tokens[:12]], [1])])
    assert len(whole.nats) == 20
    np.testing.assert_allclose(whole.nats[:11], part.nats, atol=1e-5)
    with pytest.raises(DataError, match="a sequence has 22 tokens, and the model knows 20 positions"):
        list(scorer.score([Group.of([tokens], [1])]))


def test_many_scored_tokens_are_taken_a_block_at_a_time(monkeypatch):
    from marin.evaluation import likelihood

    model, groups = _model(CONFIGS["llama"]), _groups(seed=3, count=4)
    at_once = dict(LikelihoodScorer(model, share=False).score(groups))
    monkeypatch.setattr(likelihood, "_LOGITS", 24 * VOCAB)
    in_blocks = dict(LikelihoodScorer(model, share=False).score(groups))
    for number in at_once:
        for one, other in zip(at_once[number], in_blocks[number], strict=True):
            np.testing.assert_allclose(one.nats, other.nats, rtol=1e-6, atol=1e-6)


def test_bfloat16_is_near_float32():
    model, groups = _model(CONFIGS["llama"]), _groups(count=2)
    exact, rough = (
        dict(LikelihoodScorer(model, precision=Precision(p), share=False).score(groups)) for p in ("f32", "bf16")
    )
    means = [
        [row.mean_nats for number in range(2) for row in found[number] if len(row.nats)] for found in (exact, rough)
    ]
    assert means[0] != means[1]
    np.testing.assert_allclose(*means, rtol=0.05)


def test_group_shares_all_but_the_token_before_what_is_scored():
    group = Group.of([[1, 2, 3, 4, 9], [1, 2, 3, 4, 8, 7]], [4, 4])
    assert group.prefix.tolist() == [1, 2, 3]
    assert [row.tolist() for row in group.rows] == [[4, 9], [4, 8, 7]] and group.starts == (1, 1)
    assert Group.of([[1, 2, 3]], [2]).prefix.tolist() == []


@pytest.mark.parametrize("start", [0, 4])
def test_group_refuses_what_has_nothing_before_it(start):
    with pytest.raises(ConfigError, match=f"cannot be scored from token {start}"):
        Group.of([[1, 2, 3]], [start])


def test_every_scored_token_is_in_one_batch_and_batches_keep_to_their_limit():
    groups = _groups(seed=2, count=40)
    for limits in (Limits(512), Limits(512, share=False), Limits(4096)):
        seen = set()
        for batch in plan(groups, limits):
            assert batch.prefix_GS.size + batch.tokens_RT.size <= max(limits.tokens, 400)
            for number, row, first, stop in batch.members:
                group = groups[number]
                assert (number, row) not in seen
                seen.add((number, row))
                assert batch.target_N[first:stop].tolist() == group.rows[row][group.starts[row] :].tolist()
                places = zip(
                    batch.row_N[first:stop], batch.position_N[first:stop], batch.target_N[first:stop], strict=True
                )
                for r, t, target in places:
                    assert t == batch.tokens_RT.shape[1] - 1 or batch.tokens_RT[r, t + 1] == target
        assert seen == {(n, row) for n, group in enumerate(groups) for row in range(len(group.rows))}


@pytest.mark.parametrize("steps", [2, 4, 8])
def test_ladder_pads_by_at_most_its_step(steps):
    rungs = {rung(length, steps) for length in range(1, 2049)}
    assert all(length <= rung(length, steps) <= max(16, length * (1 + 1 / steps)) for length in range(1, 2049))
    assert len(rungs) == 1 + 7 * steps


def test_few_sequences_need_few_programs_and_many_little_padding():
    draw = np.random.default_rng(0)

    def planned(count):
        groups = [Group.of([draw.integers(0, VOCAB, n)], [1]) for n in draw.integers(20, 250, count)]
        batches = list(plan(groups, Limits(1024)))
        tokens = sum(len(group.rows[0]) for group in groups)
        return len({batch.tokens_RT.shape for batch in batches}), sum(b.tokens_RT.size for b in batches) / tokens

    few, many = planned(60), planned(2000)
    assert few[0] <= 9 and few[1] < 1.5
    assert many[0] <= 36 and many[1] < 1.08


def test_token_beyond_the_vocabulary_is_refused():
    with pytest.raises(DataError, match="token 95, and the model a vocabulary of 90"):
        list(LikelihoodScorer(_model(CONFIGS["llama"])).score([Group.of([[1, 95]], [1])]))


def test_model_with_damaged_weights_is_refused():
    model = _model(CONFIGS["llama"])
    damaged = eqx.tree_at(lambda m: m.final_norm.weight_D, model, model.final_norm.weight_D * jnp.nan)
    with pytest.raises(DataError, match="not finite"):
        list(LikelihoodScorer(damaged).score([Group.of([[1, 2]], [1])]))


def test_batch_of_no_tokens_is_refused():
    with pytest.raises(ConfigError, match="`batch_tokens` is 0"):
        LikelihoodScorer(_model(dataclasses.replace(CONFIGS["llama"])), batch_tokens=0)
