"""`benchmarks/hlo_costs.py`: kernels, bytes and FLOPs, of programs compiled here and of a text with a GPU's kernels."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from benchmarks.hlo_costs import Kernel, kernels_of, least_seconds, merged

# A loop of 4 trips whose body calls cuBLAS and cuDNN, adds in place, and reads a slice of a large array.
GPU = """HloModule jit_step, is_scheduled=true

%fused_gemm (param_0: bf16[64,32], param_1: bf16[32,128]) -> (f32[64,128], s8[4096]) {
  %param_0 = bf16[64,32]{1,0} parameter(0)
  %param_1 = bf16[32,128]{1,0} parameter(1)
  ROOT %gemm.1 = (f32[64,128]{1,0}, s8[4096]{0}) custom-call(%param_0, %param_1), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
}

%fused_slice (param_0.1: f32[1000,64], param_1.1: s32[]) -> f32[1,64] {
  %param_0.1 = f32[1000,64]{1,0} parameter(0)
  %param_1.1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice.1 = f32[1,64]{1,0} dynamic-slice(%param_0.1, %param_1.1, %zero), dynamic_slice_sizes={1,64}
  ROOT %negate.1 = f32[1,64]{1,0} negate(%slice.1)
}

%fused_update (param_0.2: f32[1000,64], param_1.2: f32[1,64], param_2.2: s32[]) -> f32[1000,64] {
  %param_0.2 = f32[1000,64]{1,0} parameter(0)
  %param_1.2 = f32[1,64]{1,0} parameter(1)
  %param_2.2 = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %update.1 = f32[1000,64]{1,0} dynamic-update-slice(%param_0.2, %param_1.2, %param_2.2, %zero.1)
}

%body (state: (bf16[64,32], bf16[32,128], f32[1000,64], s32[], bf16[2,3,16,8])) -> (bf16[64,32], bf16[32,128], f32[1000,64], s32[], bf16[2,3,16,8]) {
  %state = (bf16[64,32]{1,0}, bf16[32,128]{1,0}, f32[1000,64]{1,0}, s32[], bf16[2,3,16,8]{3,1,2,0}) parameter(0)
  %x = bf16[64,32]{1,0} get-tuple-element(%state), index=0
  %w = bf16[32,128]{1,0} get-tuple-element(%state), index=1
  %table = f32[1000,64]{1,0} get-tuple-element(%state), index=2
  %place = s32[] get-tuple-element(%state), index=3
  %q = bf16[2,3,16,8]{3,1,2,0} get-tuple-element(%state), index=4
  %gemm_fusion = (f32[64,128]{1,0}, s8[4096]{0}) fusion(%x, %w), kind=kCustom, calls=%fused_gemm, metadata={op_name="jit(step)/dot_general"}
  %row = f32[1,64]{1,0} fusion(%table, %place), kind=kLoop, calls=%fused_slice
  %table.1 = f32[1000,64]{1,0} fusion(%table, %row, %place), kind=kLoop, calls=%fused_update
  %attention = (bf16[2,3,16,8]{3,1,2,0}, s8[0]{0}) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax"
  %attended = bf16[2,3,16,8]{3,1,2,0} get-tuple-element(%attention), index=0
  ROOT %next = (bf16[64,32]{1,0}, bf16[32,128]{1,0}, f32[1000,64]{1,0}, s32[], bf16[2,3,16,8]{3,1,2,0}) tuple(%x, %w, %table.1, %place, %attended)
}

%condition (state.1: (bf16[64,32], bf16[32,128], f32[1000,64], s32[], bf16[2,3,16,8])) -> pred[] {
  %state.1 = (bf16[64,32]{1,0}, bf16[32,128]{1,0}, f32[1000,64]{1,0}, s32[], bf16[2,3,16,8]{3,1,2,0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main.1 (a: f8e4m3fn[64,256], b: f8e4m3fn[128,256]) -> bf16[64,128] {
  %a = f8e4m3fn[64,256]{1,0} parameter(0)
  %b = f8e4m3fn[128,256]{1,0} parameter(1)
  %begin = (bf16[64,32]{1,0}, bf16[32,128]{1,0}, f32[1000,64]{1,0}, s32[], bf16[2,3,16,8]{3,1,2,0}) constant({...})
  %loop = (bf16[64,32]{1,0}, bf16[32,128]{1,0}, f32[1000,64]{1,0}, s32[], bf16[2,3,16,8]{3,1,2,0}) while(%begin), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"4"}}
  %gemm.2 = (bf16[64,128]{1,0}, s8[4096]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul$f8", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"]}}}
  ROOT %result = bf16[64,128]{1,0} get-tuple-element(%gemm.2), index=0
}
"""

# A choice between a product, much that is moved and little; and one by a predicate between nothing and little.
CHOICES = """HloModule jit_step, is_scheduled=true

%product (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0} parameter(0)
  ROOT %dot.1 = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%much (x.1: f32[8,8]) -> f32[8,8] {
  %x.1 = f32[8,8]{1,0} parameter(0)
  %negate.1 = f32[8,8]{1,0} negate(%x.1)
  %sine.1 = f32[8,8]{1,0} sine(%negate.1)
  ROOT %tanh.1 = f32[8,8]{1,0} tanh(%sine.1)
}

%little (x.2: f32[8,8]) -> f32[8,8] {
  %x.2 = f32[8,8]{1,0} parameter(0)
  ROOT %negate.2 = f32[8,8]{1,0} negate(%x.2)
}

%nothing (x.3: f32[8,8]) -> f32[8,8] {
  ROOT %x.3 = f32[8,8]{1,0} parameter(0)
}

ENTRY %main.2 (index: s32[], is_finite: pred[], a: f32[8,8]) -> f32[8,8] {
  %index = s32[] parameter(0)
  %is_finite = pred[] parameter(1)
  %a = f32[8,8]{1,0} parameter(2)
  %chosen = f32[8,8]{1,0} conditional(%index, %a, %a, %a), branch_computations={%little, %product, %much}, metadata={op_name="jit(step)/jvp(way)/cond"}
  ROOT %applied = f32[8,8]{1,0} conditional(%is_finite, %chosen, %chosen), true_computation=%little, false_computation=%nothing, metadata={op_name="jit(step)/update/cond"}
}
"""


def test_kernels_of_a_gpu_s_program_count_their_bytes_flops_and_trips():
    gemm, row, update, attention, last = kernels_of(GPU)
    assert (gemm.kind, gemm.times, gemm.number_format) == ("fusion", 4, "bf16")
    assert gemm.flops == 2 * 64 * 32 * 128
    assert gemm.num_bytes == 2 * 64 * 32 + 2 * 32 * 128 + 4 * 64 * 128  # not the workspace
    assert gemm.source == "jit(step)/dot_general"
    assert row.num_bytes == 2 * 4 * 64 + 4  # of the large array the slice alone, and where it begins
    assert update.num_bytes == 3 * 4 * 64 + 4  # what is added is read, and its place read and written
    assert attention.flops == 4 * (2 * 3 * 16 * 8) * 16 / 2
    assert (last.times, last.flops, last.number_format) == (1, 2 * 64 * 128 * 256, "f8")


def test_least_time_is_that_of_the_slower_of_memory_and_products():
    gemm, row, *_ = kernels_of(GPU)
    rates = {"bytes_per_second": 1e9, "flops_per_second": {"bf16": 1e9}}
    assert least_seconds(gemm, **rates) == pytest.approx(4 * gemm.flops / 1e9)
    assert least_seconds(row, **rates) == pytest.approx(4 * row.num_bytes / 1e9)


def test_merged_kernels_are_the_same_work():
    kernel = Kernel("dot", "f32[2]", "here", 3, 100, 50.0, "f32")
    other = Kernel("copy", "f32[2]", "there", 1, 7, 0.0, None)
    found = merged([other, kernel, kernel])
    assert [(one.kind, one.times) for one in found] == [("dot", 6), ("copy", 1)]


def test_products_of_a_compiled_program_are_those_that_were_written():
    def step(x, weights):
        return jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, weights)[0]

    shapes = jax.ShapeDtypeStruct((96, 64), jnp.float32), jax.ShapeDtypeStruct((5, 64, 64), jnp.float32)
    kernels = kernels_of(jax.jit(step).lower(*shapes).compile().as_text())
    assert sum(kernel.times * kernel.flops for kernel in kernels) == 5 * 2 * 96 * 64 * 64
    assert {kernel.number_format for kernel in kernels if kernel.flops} == {"f32"}


@pytest.mark.parametrize(
    ("branches", "kinds"),
    [
        (None, ["dot", "negate"]),
        ({"update": 0}, ["dot"]),
        ({"update": 1}, ["dot", "negate"]),
        ({"way": 0, "update": 0}, ["negate"]),
        ({"way": 1, "update": 0}, ["dot"]),
        ({"way": 2, "update": 0}, ["negate", "sine", "tanh"]),
        ({"wa": 2, "pdate": 0}, ["dot", "negate"]),  # parts of names are no names
    ],
    ids=str,
)
def test_of_a_conditional_the_branch_of_most_work_counts_or_the_one_that_is_asked_for(branches, kinds):
    assert [kernel.kind for kernel in kernels_of(CHOICES, branches=branches)] == kinds


def test_of_branches_without_products_the_one_that_moves_most_counts():
    without = CHOICES.replace("{%little, %product, %much}", "{%little, %much, %nothing}")
    assert [kernel.kind for kernel in kernels_of(without)] == ["negate", "sine", "tanh", "negate"]


@pytest.mark.parametrize("number", [3, -1])
def test_branch_that_a_conditional_lacks_is_refused(number):
    with pytest.raises(ValueError, match="'jit.step./jvp.way./cond' has 3 branches, none of which is number"):
        kernels_of(CHOICES, branches={"way": number})


def test_branches_of_a_compiled_program_are_numbered_as_jax_numbers_them():
    """A switch's as they are listed; of a predicate's, 1 is the one for true."""

    def step(index, is_finite, x):
        with jax.named_scope("way"):
            x = jax.lax.switch(index, [jnp.sin, lambda x: x @ x, lambda x: x @ x @ x], x)
        with jax.named_scope("update"):
            return jax.lax.cond(is_finite, lambda x: x @ x @ x @ x @ x, jnp.cos, x)

    shapes = [jax.ShapeDtypeStruct(*shape) for shape in (((), jnp.int32), ((), bool), ((8, 8), jnp.float32))]
    program = jax.jit(step).lower(*shapes).compile().as_text()
    for way, update in itertools.product(range(3), range(2)):
        kernels = kernels_of(program, branches={"way": way, "update": update})
        assert sum(kernel.times * kernel.flops for kernel in kernels) == (way + 4 * update) * 2 * 8**3


def test_of_a_table_that_is_widened_and_gathered_from_the_gathered_numbers_count_as_they_lie_in_memory():
    program = """HloModule jit_step, is_scheduled=true

%fused_gather (param_0: bf16[64,1000], param_1: s32[64,1]) -> f32[64,1] {
  %param_0 = bf16[64,1000]{1,0} parameter(0)
  %param_1 = s32[64,1]{1,0} parameter(1)
  %wide = f32[64,1000]{1,0} convert(%param_0)
  ROOT %gather.1 = f32[64,1]{1,0} gather(%wide, %param_1), offset_dims={}, slice_sizes={1,1}
}

ENTRY %main.1 (table: bf16[64,1000], places: s32[64,1]) -> f32[64,1] {
  %table = bf16[64,1000]{1,0} parameter(0)
  %places = s32[64,1]{1,0} parameter(1)
  ROOT %picked = f32[64,1]{1,0} fusion(%table, %places), kind=kLoop, calls=%fused_gather
}
"""
    (kernel,) = kernels_of(program)
    assert kernel.num_bytes == 64 * (2 + 4 + 4)  # a number of each row, its place, and the result


def test_a_text_that_is_no_program_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        kernels_of("nothing of the kind")
