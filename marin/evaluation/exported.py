"""A model's program apart from the code that made it, so that a run can be scored where none of that code is.

    export_program(scorer, folder, batch_size, context_length)    in a process that has the model's code
    program = ExportedProgram.read(folder)                        in one that has not
    scorer = Scorer(program, program.arrays_of(checkpoint, prefix, precision), softcap, precision)

    {folder}/activations.bin    StableHLO as `jax.export` writes it: arrays by name, tokens, segment ids -> activations
             head.bin           arrays by name -> the head

The arrays themselves are not in it: they are read from a checkpoint, by their names. Such a program is given nothing else and can only
compute, so that the probes (`marin.evaluation.validity`) say of it what they say of a model, whoever wrote it. One that does more is
refused before it is run: it could keep what it has seen, or change the process that scores it. What it holds is measured as a whole: its
constants, and its operations beyond what an honest model's take.
"""

import contextlib
import dataclasses
import functools
import lzma
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend.mlir import deserialize_portable_artifact, ir
from jax.extend.mlir.dialects import chlo, sdy, stablehlo
from jaxtyping import Array, Float

from marin.errors import CheckpointError, DataError
from marin.evaluation.program_flops import product_flops
from marin.evaluation.scoring import Scorer
from marin.nn.precision import Precision
from marin.nn.trees import named_leaves
from marin.storage import files
from marin.training import checkpoint as checkpoints
from marin.training.checkpoint import Checkpoint

ACTIVATIONS_FILE, HEAD_FILE = "activations.bin", "head.bin"
_MAX_BYTES = 2**26

# Kernels for attention, which JAX writes down only where it is told that they may change between versions.
_KERNELS = ("__cudnn$fmhaSoftmax", "__cudnn$fmhaScaleBiasSoftmax")
# What else a program may call: kernels of a TPU, random numbers, the largest of many, where arrays are placed. Not linear algebra, whose
# kernels write as far as their operands' shapes say, and theirs alone, nor Triton's and Mosaic's for GPUs, which reach all of the memory.
_CALLS = {*_KERNELS, "tpu_custom_call", "cu_threefry2x32_ffi", "hip_threefry2x32_ffi", "ApproxTopK", "mhlo.topk", "Sharding",
          "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"}  # fmt: skip
_DIALECTS = {"builtin", "func", "stablehlo", "chlo", "sdy"}
# `rng` counts its calls, as its state outlives them.
_NOT_PURE = {f"stablehlo.{name}" for name in ("rng", "infeed", "outfeed", "send", "recv")}
_CALL = "stablehlo.custom_call"
_VALUE = re.compile(r"%[\w$.-]+")
_IS_MADE = re.compile(r"(?::\d+)? =|: ")  # what follows a value's name where it is made, not used
_DATA = re.compile(r'"0x([0-9A-Fa-f]+)"')
_NAMES = {"gpu": {"cuda", "rocm"}}  # what programs call a backend of another name
# Operations of an honest program, packed, and for each array that it is given: a Llama of 2 layers 3.6 KB, of 32 layers (291 arrays) 8.4 KB, a
# GPT of 12 (91 arrays) 7.0 KB, a mixture of experts of 4 (79 arrays) 6.1 KB; on a GPU, where attention has several ways to choose from, 6.5,
# 21.0 and 12.9 KB. The smallest evaluation set has 345 KiB of text. An array of few parameters counts for less, as any number of them is soon
# added.
_OPERATIONS, _OPERATIONS_OF_ARRAY, _ON_GPU = 2**13, 2**5, 80


def export_program(scorer: Scorer, folder: str, batch_size: int, context_length: int) -> None:
    """Writes down what a scorer computes of batches of this shape.

    Raises:
        DataError: the program calls what cannot be written down, such as a function of Python, or would be refused by who reads it.
    """
    leaves = named_leaves(scorer.arrays)
    structure, names = jax.tree.structure(scorer.arrays), list(leaves)
    arrays = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in leaves.items()}
    tokens_BT = jax.ShapeDtypeStruct((batch_size, context_length), np.int32)
    allowed = [export.DisabledSafetyCheck.custom_call(name) for name in _KERNELS]

    def tree_of(arrays: dict[str, Any]) -> Any:
        return jax.tree.unflatten(structure, [arrays[name] for name in names])

    def activations(arrays: dict[str, Any], tokens_BT: Any, segment_ids_BT: Any) -> Any:
        return scorer.program.activations(tree_of(arrays), tokens_BT, segment_ids_BT)

    def head(arrays: dict[str, Any]) -> Any:
        return scorer.program.head(tree_of(arrays))

    with _as_data_error("the model's program cannot be written down"):
        written = {
            ACTIVATIONS_FILE: export.export(jax.jit(activations), disabled_checks=allowed)(
                arrays, tokens_BT, tokens_BT
            ),
            HEAD_FILE: export.export(jax.jit(head), disabled_checks=allowed)(arrays),
        }
    for exported in written.values():
        _check_computes(exported, "the model's program")
    with _as_data_error("the model's program cannot be written down"):
        contents = {name: bytes(program.serialize()) for name, program in written.items()}
    for name, content in contents.items():
        files.write_bytes(files.join(folder, name), content)


@dataclasses.dataclass(frozen=True)
class ExportedProgram:
    """A program that was written down; a `Program` of `marin.evaluation.scoring`.

    Args:
        shapes: of the arrays that it is given, by name.
        batch_size, context_length: of the batches that it takes.
    """

    exported: tuple[export.Exported, export.Exported]
    shapes: dict[str, jax.ShapeDtypeStruct]
    batch_size: int
    context_length: int

    num_traces = 1

    @staticmethod
    def read(folder: Path) -> "ExportedProgram":
        """Raises:
        DataError: it is not there, is damaged or of another kind of device, does more than compute, or takes or gives something else
            than a model does.
        """
        activations, head = (_exported(folder / name) for name in (ACTIVATIONS_FILE, HEAD_FILE))
        for exported, name in ((activations, ACTIVATIONS_FILE), (head, HEAD_FILE)):
            _check_computes(exported, f"the program {folder / name}")
        try:
            (arrays, tokens_BT, segment_ids_BT), _ = jax.tree.unflatten(activations.in_tree, activations.in_avals)
            ((arrays_of_head,), _) = jax.tree.unflatten(head.in_tree, head.in_avals)
            shapes, others = _shapes(arrays), _shapes(arrays_of_head)
            (batch_size, context_length), integers = tokens_BT.shape, {np.dtype(np.int32)}
            whole = segment_ids_BT.shape == tokens_BT.shape and {tokens_BT.dtype, segment_ids_BT.dtype} == integers
            (x_BTD,), (head_DV,) = activations.out_avals, head.out_avals
            *batch, width = x_BTD.shape
            gives = tuple(batch) == tokens_BT.shape and len(head_DV.shape) == 2 and head_DV.shape[0] == width
            gives &= all(jnp.issubdtype(given.dtype, jnp.floating) for given in (x_BTD, head_DV))
        except (AttributeError, TypeError, ValueError) as error:
            raise DataError(f"the program in {folder} takes no batches of tokens ({error})") from None
        if not whole or shapes != others:
            raise DataError(f"the program in {folder} takes no batches of tokens, or its head other arrays")
        if not gives:
            raise DataError(
                f"the program in {folder} gives no activations of its tokens that its head can be applied to: {x_BTD.str_short()} and"
                f" {head_DV.str_short()}"
            )
        return ExportedProgram((activations, head), shapes, batch_size, context_length)

    def arrays_of(self, checkpoint: Checkpoint, prefix: str, precision: Precision) -> dict[str, Array]:
        """The arrays that it is given, from a checkpoint that was verified.

        Raises:
            CheckpointError: the checkpoint has not these arrays.
            DataError: the program takes them in another format than the run computes in.
        """
        kept, arrays = checkpoints.read_arrays(checkpoint, prefix), {}
        for name, shape in self.shapes.items():
            value = kept.get(name)
            if value is None or value.shape != shape.shape:
                has = "does not have" if value is None else f"has with shape {value.shape}"
                raise CheckpointError(
                    f"the program takes `{prefix}{name}` of shape {shape.shape}, which {checkpoint.path} {has}: it is of another model"
                )
            array = precision.cast(jnp.asarray(value))
            if array.dtype != shape.dtype:
                raise DataError(f"the program takes `{name}` in {shape.dtype}, the run computes in {array.dtype}")
            arrays[name] = array
        return arrays

    def head(self, arrays: Any, /) -> Float[Array, "D V"]:
        return self._calls[1](arrays)

    def activations(self, arrays: Any, tokens_BT: Any, segment_ids_BT: Any, /) -> Float[Array, "B T D"]:
        return self._calls[0](arrays, tokens_BT, segment_ids_BT)

    def flops_per_token(self) -> float:
        """At the least, for a token that is scored: the products of its activations, and that with the head.

        Raises:
            DataError: they cannot be counted.
        """
        activations, head = self.exported
        with _as_data_error("the program's products cannot be counted"), _module_of(activations) as module:
            flops = product_flops(module).floor
        return flops / (self.batch_size * self.context_length) + 2.0 * math.prod(head.out_avals[0].shape)

    @functools.cached_property
    def _calls(self) -> tuple[Any, Any]:
        activations, head = (jax.jit(each.call) for each in self.exported)
        return activations, head

    @functools.cached_property
    def _texts(self) -> tuple[str, ...]:
        return tuple(map(_text_of, self.exported))

    def calls_out(self, *_: Any) -> set[str]:
        return set()  # or it would not have been read

    def held(self, *_: Any) -> tuple[int, str]:
        constants = [
            bytes.fromhex(data.zfill(len(data) + len(data) % 2)) for text in self._texts for data in _DATA.findall(text)
        ]
        sizes = [len(zlib.compress(content, 9 if len(content) < 1 << 22 else 1)) for content in constants]
        operations = sum(len(lzma.compress(_unnamed(_DATA.sub("", text)).encode())) for text in self._texts)
        words = f"of {max(map(len, constants)):,} bytes" if constants else "none"
        sizes_of_arrays = (math.prod(shape.shape) for shape in self.shapes.values())
        each = _OPERATIONS_OF_ARRAY if "cpu" in self.exported[0].platforms else _ON_GPU
        honest = _OPERATIONS + sum(min(each, size // 128) for size in sizes_of_arrays)
        return sum(sizes) + max(0, operations - honest), words


@contextlib.contextmanager
def _module_of(exported: export.Exported) -> Iterator[ir.Module]:
    with ir.Context() as context:
        for dialect in (stablehlo, chlo, sdy):
            dialect.register_dialect(context)
        yield deserialize_portable_artifact(exported.mlir_module_serialized)


def _text_of(exported: export.Exported) -> str:
    """All that a program is, without where in which file it came from."""
    with _module_of(exported) as module:
        return str(module.operation.get_asm(enable_debug_info=False, print_generic_op_form=True))


def _check_computes(exported: export.Exported, what: str) -> None:
    """Raises:
    DataError: the program calls what is not known, keeps a state, or reaches out of itself.
    """
    found = {"an effect"} if exported.ordered_effects or exported.unordered_effects else set()

    def look(operation: ir.Operation) -> ir.WalkResult:
        name = operation.name
        if name == _CALL:
            name = ir.StringAttr(operation.attributes["call_target_name"]).value
            if name not in _CALLS:
                found.add(name)
        elif name in _NOT_PURE or name.partition(".")[0] not in _DIALECTS:
            found.add(name)
        return ir.WalkResult.ADVANCE

    with _as_data_error(f"{what} cannot be read"), _module_of(exported) as module:
        module.operation.walk(look)
    if found:
        raise DataError(
            f"{what} does more than compute: it has {', '.join(sorted(found))[:300]}; it cannot be scored apart from its code"
        )


def _unnamed(text: str) -> str:
    """A program's text with each value called by how far back it was made, so that layers that are alike read alike."""
    made: dict[str, int] = {}
    last = 0

    def of(match: re.Match[str]) -> str:
        nonlocal last
        name = match.group()
        if name in made and not _IS_MADE.match(text, match.end()):
            return f"%{last - made[name]}"
        last += 1
        made[name] = last  # a name of another function stands for the newer value
        return "%"

    return _VALUE.sub(of, text)


def _exported(path: Path) -> export.Exported:
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        raise DataError(f"{path} is not there, or larger than {_MAX_BYTES >> 20} MiB")
    with _as_data_error(f"{path} is damaged, or no program that this version of JAX reads"):
        exported = export.deserialize(bytearray(path.read_bytes()))
    here = jax.default_backend()
    if not _NAMES.get(here, {here}) & set(exported.platforms) or exported.nr_devices != 1:
        devices = f"{exported.nr_devices} of {', '.join(exported.platforms)}"
        raise DataError(f"{path} is a program for other devices ({devices}): this process has {here}")
    return exported


def _shapes(arrays: Any) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in arrays.items()}


@contextlib.contextmanager
def _as_data_error(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # JAX, MLIR and the reader of buffers each have errors of their own
        raise DataError(f"{what} ({type(error).__name__}: {str(error)[:300]})") from None
