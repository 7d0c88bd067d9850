"""Where parameters and optimizer state lie, and that each device holds its part only."""

import math

import jax
import pytest
from jax.sharding import PartitionSpec as P

from experiments.hackable_transformer_starter_template import HackableTransformerConfig
from marin.nn.trees import named_leaves
from marin.optim import AdamConfig, MuonConfig
from marin.optim.soap import SoapConfig
from marin.parallel.mesh import make_mesh
from marin.parallel.sharding import parameter_spec, state_shardings, state_specs, undivided
from marin.training.placement import parameter_shapes, state_shapes, trace_initial_state

MODEL = HackableTransformerConfig(
    seq_len=32, hidden_dim=32, intermediate_dim=48, num_layers=1, num_heads=4, num_kv_heads=2, use_bias=True
)
VOCAB = 96
SIZES = {"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1}


@pytest.mark.parametrize(
    ("path", "shape", "spec"),
    [
        ("blocks.0.attention.query.weight_IO", (32, 32), P("fsdp", "tensor")),
        ("blocks.0.attention.output.weight_IO", (32, 32), P("tensor", "fsdp")),
        ("blocks.0.mlp.down.weight_IO", (48, 32), P("tensor", "fsdp")),
        ("embedding.weight_VD", (96, 32), P("tensor", "fsdp")),
        ("lm_head.weight_IO", (32, 96), P("fsdp", "tensor")),
        ("blocks.0.attention_norm.weight_D", (32,), P()),
        ("blocks.3.mixer.table", (30, 64), P(None, "fsdp")),  # no name that is known: along fsdp alone
        ("experts.up_EDF", (4, 32, 64), P(None, "fsdp", "tensor")),
        ("blocks.0.attention.query.weight_IO", (33, 32), P(None, ("tensor", "fsdp"))),
        ("blocks.0.attention.query.weight_IO", (33, 35), P(None, None)),  # nothing divides it
    ],
)
def test_parameters_lie_by_the_name_of_their_module_and_their_shape(path, shape, spec):
    assert parameter_spec(path, shape, SIZES) == spec


@pytest.mark.parametrize("optimizer", [AdamConfig(), MuonConfig(), SoapConfig()], ids=lambda o: type(o).__name__)
def test_optimizer_state_and_average_lie_as_their_parameters(optimizer):
    params = parameter_shapes(MODEL, VOCAB)
    state = state_shapes(MODEL, VOCAB, optimizer.build(params, 10), 0.9)
    specs = {name: spec for name, spec in named_leaves(state_specs(state, params, SIZES)).items()}
    for name, leaf in named_leaves(params).items():
        own = parameter_spec(name, leaf.shape, SIZES)
        same = [
            other
            for other in named_leaves(state)
            if other.endswith("." + name) and named_leaves(state)[other].shape == leaf.shape
        ]
        assert len(same) >= 3, name  # the model, the average, and at least one moment
        assert {specs[other] for other in same} == {own}, name


def test_a_matrix_that_no_axis_divides_is_named():
    params = parameter_shapes(MODEL, 97)
    assert undivided(parameter_shapes(MODEL, VOCAB), SIZES) == {}
    assert undivided(params, {"fsdp": 5}).keys() >= {"blocks.0.mlp.up.weight_IO", "lm_head.weight_IO"}
    assert undivided(params, {"data": 8}) == {}  # there parameters are meant to be whole


def test_each_device_holds_its_part_of_the_state_only():
    optimizer = AdamConfig().build(parameter_shapes(MODEL, VOCAB), 10)
    initial = trace_initial_state(MODEL, VOCAB, optimizer)
    whole = initial.run(make_mesh({}))
    state = initial.run(make_mesh({"fsdp": 4, "tensor": 2}))

    def held(tree):
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))

    matrices = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim > 1]
    assert all(math.prod(leaf.shape) == 8 * leaf.addressable_shards[0].data.size for leaf in matrices)
    assert held(state) < 0.2 * held(whole)  # an eighth, and the vectors
    for name, value in named_leaves(state).items():
        assert value.shape == named_leaves(whole)[name].shape


@pytest.mark.parametrize("sizes", [{}, {"data": 2, "fsdp": 2, "tensor": 2}], ids=["one device", "eight devices"])
def test_the_layout_of_a_state_is_that_of_the_state_that_is_made(sizes):
    """As the step is compiled for it while the state is still in the making."""
    optimizer, mesh = MuonConfig().build(parameter_shapes(MODEL, VOCAB), 10), make_mesh(sizes)
    initial = trace_initial_state(MODEL, VOCAB, optimizer, ema_beta=0.9)
    made, layout = initial.run(mesh), initial.layout(mesh)
    assert jax.tree.structure(made) == jax.tree.structure(layout)
    for name, leaf in named_leaves(layout).items():
        array = named_leaves(made)[name]
        assert (array.shape, array.dtype, array.weak_type) == (leaf.shape, leaf.dtype, leaf.weak_type), name
        assert array.sharding == leaf.sharding, name


def test_the_same_initial_weights_whatever_the_mesh():
    import numpy as np

    optimizer = MuonConfig().build(parameter_shapes(MODEL, VOCAB), 10)
    whole = named_leaves(trace_initial_state(MODEL, VOCAB, optimizer).run(make_mesh({})).model)
    mesh = make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
    divided = trace_initial_state(MODEL, VOCAB, optimizer).run(mesh)
    for name, value in named_leaves(divided.model).items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-6, atol=1e-8, err_msg=name)
    expected = named_leaves(state_shardings(divided, divided.model, mesh))
    assert all(
        leaf.sharding.is_equivalent_to(expected[name], leaf.ndim) for name, leaf in named_leaves(divided).items()
    )
