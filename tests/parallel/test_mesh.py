"""What `Parallelism` means, and which sizes are refused."""

import pytest

from marin.errors import ConfigError
from marin.parallel.mesh import Parallelism, check_batch, default_parallelism, describe_mesh, make_mesh, run_mesh
from marin.resources import CpuOnlyConfig, GpuConfig
from marin.training import SimpleTrainConfig


@pytest.mark.parametrize(
    ("given", "num_devices", "sizes"),
    [
        (Parallelism(), 8, {"data": 8, "fsdp": 1, "tensor": 1, "sequence": 1}),
        (Parallelism(fsdp=4), 8, {"data": 2, "fsdp": 4, "tensor": 1, "sequence": 1}),
        (Parallelism(data=1, fsdp=-1, tensor=2), 8, {"data": 1, "fsdp": 4, "tensor": 2, "sequence": 1}),
        (Parallelism(2, 2, 1, 2), 8, {"data": 2, "fsdp": 2, "tensor": 1, "sequence": 2}),
    ],
)
def test_parallelism_gives_the_devices_that_are_left_to_one_axis(given, num_devices, sizes):
    assert given.sizes(num_devices) == sizes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor": 0}, "`parallelism.tensor` is 0"),
        ({"fsdp": True}, "`parallelism.fsdp` is True"),
        ({"sequence": 2.0}, "`parallelism.sequence` is 2.0"),
        ({"fsdp": -1}, "-1 for data and fsdp"),
    ],
)
def test_parallelism_that_cannot_be_is_refused_by_field(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Parallelism(**arguments)


def test_parallelism_that_does_not_fit_the_devices_says_how_many_it_needs():
    with pytest.raises(ConfigError, match="tensor 3.*needs 3 devices or a multiple of it, and there are 8"):
        Parallelism(tensor=3).sizes(8)
    with pytest.raises(ConfigError, match="data 2 x fsdp 2.*needs 4 devices or as many, and there are 8"):
        Parallelism(data=2, fsdp=2).sizes(8)


def test_accelerators_divide_parameters_by_default_and_processors_copy_them():
    assert default_parallelism("gpu").sizes(8)["fsdp"] == default_parallelism("tpu").sizes(8)["fsdp"] == 8
    assert default_parallelism("cpu").sizes(8)["data"] == 8


def test_a_processor_is_one_device_unless_parallelism_asks_for_more():
    cpu = CpuOnlyConfig()
    assert run_mesh(cpu, None).size == 1
    assert run_mesh(cpu, Parallelism()).size == 8
    assert describe_mesh(run_mesh(cpu, Parallelism(1, 2, 2))) == "4 devices: fsdp 2, tensor 2"
    with pytest.raises(ConfigError, match="16 devices are asked for, JAX sees 8"):
        run_mesh(cpu, Parallelism(data=16))


def test_a_batch_or_context_that_the_mesh_does_not_divide_is_refused():
    mesh = make_mesh({"data": 2, "fsdp": 2, "sequence": 2})
    check_batch(8, 32, mesh)
    with pytest.raises(ConfigError, match="`train_batch_size` is 6, which 4 devices cannot divide"):
        check_batch(6, 32, mesh)
    with pytest.raises(ConfigError, match="33 tokens, which `parallelism.sequence` 2 does not divide"):
        check_batch(8, 33, mesh)


def test_tensor_parallelism_asks_less_of_the_batch_size():
    def config(**options):
        return SimpleTrainConfig(GpuConfig(8, "H100"), 4, num_train_steps=1, learning_rate=0.1, **options)

    config(parallelism=Parallelism(tensor=2))
    with pytest.raises(ConfigError, match="use a multiple of 8"):
        config()
    with pytest.raises(ConfigError, match="`parallelism` is 4"):
        config(parallelism=4)
