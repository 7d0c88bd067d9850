"""What a compiled program does: its kernels with the bytes that each moves and the FLOPs of its products.

Read off the text of an optimized XLA program (`compiled.as_text()`), whose instructions outside of fusions are kernels. Bytes are
those of a kernel's operands and results, of an operand that is only sliced or gathered from those of the slices; what a cache
saves is not known here. A loop's kernels count as often as its known number of trips. Of a conditional's branches one counts: that
of most FLOPs, and of most bytes among equals, such as an update that is applied, not left out; or the one that is asked for.
Attention's kernels count four FLOPs a query, key and feature, halved as they are causal, and two and a half times that backward.
"""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping

_BYTES = {
    "pred": 1, "s8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2,
    "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8,
}  # fmt: skip
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)|branch_computations=\{([^}]*)\}"
)
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ensions":\[|s=\{)([^\]}]*)')  # of a call into cuBLAS, and of a `dot`
_FREE = {
    "parameter",
    "constant",
    "bitcast",
    "tuple",
    "get-tuple-element",
    "after-all",
    "iota",
    "partition-id",
    "replica-id",
}
_BACKWARD_ATTENTION = 2.5


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel of a program.

    Args:
        kind: XLA's word for it; of a call into a library its name.
        shape: of its results.
        source: where in the program it comes from, as JAX names it.
        times: how often the program runs it.
        num_bytes: that it moves each time.
        flops: of its products, each time.
        number_format: of what its products multiply; None without products.
    """

    kind: str
    shape: str
    source: str
    times: int
    num_bytes: int
    flops: float
    number_format: str | None


@dataclasses.dataclass(frozen=True)
class _Instruction:
    shape: str
    kind: str
    operands: list[str]
    text: str  # of the operands
    attributes: str
    is_root: bool


_Computation = dict[str, _Instruction]


def kernels_of(program: str, *, branches: Mapping[str, int] | None = None) -> list[Kernel]:
    """The kernels of an optimized program, in its text's order.

    Args:
        branches: by a name that a `jax.named_scope` gives, the branch that the conditionals in it take, as `jax.lax.switch` numbers
            them.
    Raises:
        ValueError: if the text has no entry computation, or a conditional has no branch of the number that is asked for.
    """
    computations, entry = _parse(program)
    if entry is None:
        raise ValueError("not the text of an XLA program: it has no ENTRY computation")
    return list(_kernels(computations, computations[entry], 1, branches or {}))


def least_seconds(kernel: Kernel, *, bytes_per_second: float, flops_per_second: dict[str, float]) -> float:
    """How long all runs of a kernel take at least, if it moves its bytes and multiplies at these rates at once."""
    multiplying = kernel.flops / flops_per_second[kernel.number_format] if kernel.number_format else 0.0
    return kernel.times * max(kernel.num_bytes / bytes_per_second, multiplying)


def merged(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Kernels that differ in nothing but where they stand, as one that runs so much oftener; those of most FLOPs and bytes first."""
    times: collections.Counter[Kernel] = collections.Counter()
    for kernel in kernels:
        times[dataclasses.replace(kernel, times=1)] += kernel.times
    found = [dataclasses.replace(kernel, times=count) for kernel, count in times.items()]
    return sorted(found, key=lambda kernel: (-kernel.times * kernel.flops, -kernel.times * kernel.num_bytes))


def _parse(program: str) -> tuple[dict[str, _Computation], str | None]:
    computations: dict[str, _Computation] = {}
    current: _Computation = {}
    entry = None
    for line in program.splitlines():
        if line.startswith(("%", "ENTRY")) and line.rstrip().endswith("{"):
            name = line.removeprefix("ENTRY ").lstrip("%").split(" ")[0].split("(")[0]
            current = computations.setdefault(name, {})
            entry = name if line.startswith("ENTRY") else entry
        elif found := _INSTRUCTION.match(line):
            root, name, shape, kind, rest = found.groups()
            operands = rest[: _closing(rest)]
            current[name] = _Instruction(
                shape, kind, re.findall(r"%([\w.\-]+)", operands), operands, rest[len(operands) :], bool(root)
            )
    return computations, entry


def _closing(text: str) -> int:
    """Where the parenthesis that was opened before the text is closed."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place
    return len(text)


def _kernels(
    computations: dict[str, _Computation], computation: _Computation, times: int, branches: Mapping[str, int]
) -> Iterator[Kernel]:
    for instruction in computation.values():
        if instruction.kind in _FREE:
            continue
        if instruction.kind in ("while", "call", "conditional", "async-start"):
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', instruction.attributes)
            each = times * (int(trips[1]) if trips else 1)
            called = [list(_kernels(computations, computations[name], each, branches)) for name in _called(instruction)]
            if instruction.kind == "conditional":
                called = [_taken(instruction, called, branches)]
            yield from itertools.chain.from_iterable(called)
            continue
        inner = computations[_called(instruction)[0]] if instruction.kind == "fusion" else {}
        num_bytes = _fusion_bytes(computation, instruction, inner) if inner else _plain_bytes(computation, instruction)
        products = [_product(where, one) for where, one in _products(computation, instruction, inner)]
        yield Kernel(
            kind=_target(instruction) or instruction.kind,
            shape=re.sub(r"\{[\d,]*\}", "", instruction.shape),
            source=_source(instruction),
            times=times,
            num_bytes=num_bytes,
            flops=sum(flops for flops, _ in products),
            number_format=products[0][1] if products else None,
        )


def _taken(conditional: _Instruction, called: list[list[Kernel]], branches: Mapping[str, int]) -> list[Kernel]:
    """The kernels of the branch that counts."""
    # The text has a predicate's branches the other way round: first the one for true, which has the number 1.
    numbered = called[::-1] if "true_computation=" in conditional.attributes else called
    source = _source(conditional)
    for scope, number in branches.items():
        if re.search(rf"\b{re.escape(scope)}\b", source):
            if not 0 <= number < len(numbered):
                raise ValueError(f"{source!r} has {len(numbered)} branches, none of which is number {number} from 0 on")
            return numbered[number]
    return max(
        numbered,
        key=lambda kernels: (
            sum(kernel.times * kernel.flops for kernel in kernels),
            sum(kernel.times * kernel.num_bytes for kernel in kernels),
        ),
    )


def _called(instruction: _Instruction) -> list[str]:
    found = _CALLED.findall(instruction.attributes)
    return [name.strip().lstrip("%") for one, several in found for name in ([one] if one else several.split(","))]


def _plain_bytes(computation: _Computation, instruction: _Instruction) -> int:
    if instruction.kind == "dynamic-update-slice":  # in place
        return 2 * _num_bytes(computation[instruction.operands[1]].shape)
    if instruction.kind in ("dynamic-slice", "slice", "gather"):
        return 2 * _num_bytes(instruction.shape)
    return _num_bytes(instruction.shape) + sum(
        _num_bytes(computation[name].shape) for name in instruction.operands if name in computation
    )


def _fusion_bytes(computation: _Computation, fusion: _Instruction, inner: _Computation) -> int:
    places = {int(one.text): name for name, one in inner.items() if one.kind == "parameter"}
    total = 0
    for place, operand in enumerate(fusion.operands):
        users = _users(inner, places[place], ("bitcast",))
        readers = _users(inner, places[place], ("bitcast", "convert"))
        shape = computation[operand].shape
        whole = _num_bytes(shape)
        if readers and all(user.kind in ("dynamic-slice", "slice", "gather") and first for user, first in readers):
            # Of the type that lies in memory, whatever a slice of it becomes.
            total += min(whole, sum(_num_elements(user.shape) for user, _ in readers) * _element_bytes(shape))
        elif not (users and all(user.kind == "dynamic-update-slice" and first for user, first in users)):
            total += whole
    return total + _written(inner, next(name for name, one in inner.items() if one.is_root))


def _users(inner: _Computation, name: str, views: tuple[str, ...]) -> list[tuple[_Instruction, bool]]:
    """What reads a value, directly or through instructions of the kinds `views`, and whether as its first operand."""
    users = []
    for other, one in inner.items():
        if name in one.operands:
            users += _users(inner, other, views) if one.kind in views else [(one, one.operands[0] == name)]
    return users


def _written(inner: _Computation, name: str) -> int:
    one = inner[name]
    if one.kind == "tuple":
        return sum(_written(inner, part) for part in one.operands)
    if one.kind == "bitcast" and one.operands[0] in inner:
        return _written(inner, one.operands[0])
    if one.kind == "dynamic-update-slice":
        return 2 * _num_bytes(inner[one.operands[1]].shape)
    return _num_bytes(one.shape)


def _products(
    computation: _Computation, instruction: _Instruction, inner: _Computation
) -> list[tuple[_Computation, _Instruction]]:
    candidates = [(inner, one) for one in inner.values()] if inner else [(computation, instruction)]
    return [
        (where, one) for where, one in candidates if one.kind == "dot" or re.search("matmul|gemm|fmha", _target(one))
    ]


def _target(instruction: _Instruction) -> str:
    found = re.search(r'custom_call_target="([^"]+)"', instruction.attributes)
    return found[1] if found else ""


def _source(instruction: _Instruction) -> str:
    found = re.search(r'op_name="([^"]*)"', instruction.attributes)
    return found[1] if found else ""


def _product(computation: _Computation, product: _Instruction) -> tuple[float, str]:
    """FLOPs, and the format of the numbers that are multiplied."""
    (form, sizes), *_ = _dims(computation[product.operands[0]].shape)
    form = "f8" if form.startswith("f8") else form
    if "fmha" in _target(product):
        attended = 4 * math.prod(sizes) * _longest(computation, product) / 2
        return attended * (_BACKWARD_ATTENTION if "Backward" in _target(product) else 1), form
    places = _CONTRACTED.search(product.attributes)
    assert places is not None, product
    results = math.prod(_dims(product.shape)[0][1])
    return 2.0 * results * math.prod(sizes[int(place)] for place in re.findall(r"\d+", places[1])), form


def _longest(computation: _Computation, attention: _Instruction) -> int:
    """The number of keys: queries, keys and values are [B, T, H, C] in some order of T and H, and contexts longer than those."""
    return max(_dims(computation[attention.operands[1]].shape)[0][1][1:3])


def _dims(shape: str) -> list[tuple[str, list[int]]]:
    return [(form, [int(size) for size in sizes.split(",") if size]) for form, sizes in _SHAPE.findall(shape)]


def _num_elements(shape: str) -> int:
    return sum(math.prod(sizes) for _, sizes in _dims(shape))


def _element_bytes(shape: str) -> int:
    (form, _), *_ = _dims(shape)
    return _BYTES.get(form, 0)


def _num_bytes(shape: str) -> int:
    # A row of s8 is cuBLAS's workspace.
    return sum(
        _BYTES.get(form, 0) * math.prod(sizes) for form, sizes in _dims(shape) if (form, len(sizes)) != ("s8", 1)
    )
