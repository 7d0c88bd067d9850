"""FLOPs of a program that was written down (`marin.evaluation.exported`), by the shapes of its products.

What `marin.training.traced_flops` counts, it counts in the process that has the model's code; this counts what that process left. A
product of n by k with k by m has 2nkm FLOPs. A loop that is not written as JAX writes its own counts one turn, arms as their cheapest,
kernels nothing. What a device computes to no end counts: on a CPU, XLA multiplies every token with every expert (`ragged_dot`).
"""

import dataclasses
import math
from typing import Any

from jax.extend.mlir import ir

_PRODUCT, _CONVOLUTION, _LOOP = "stablehlo.dot_general", "stablehlo.convolution", "stablehlo.while"
_ARMS = {"stablehlo.if", "stablehlo.case"}
_LESS = "#stablehlo<comparison_direction LT>"


@dataclasses.dataclass(frozen=True)
class ProductFlops:
    """FLOPs of a program's products.

    Args:
        single: those of one matrix with another, as of activations with parameters, and of convolutions.
        batched: those of many pairs of matrices, as of queries with keys. How much of a triangle or band of them is computed is the kernel's choice.
    """

    single: float = 0.0
    batched: float = 0.0

    def __add__(self, other: "ProductFlops") -> "ProductFlops":
        return ProductFlops(self.single + other.single, self.batched + other.batched)

    def times(self, factor: float) -> "ProductFlops":
        return ProductFlops(self.single * factor, self.batched * factor)

    @property
    def total(self) -> float:
        return self.single + self.batched

    @property
    def floor(self) -> float:
        """What the model needs at the least: causal attention needs half of a square that a kernel may compute whole."""
        return self.single + self.batched / 2


def product_flops(module: ir.Module) -> ProductFlops:
    """What one call of a program's `main` computes."""
    operations = [each.operation for each in module.body.operations]
    functions = {
        ir.StringAttr(each.attributes["sym_name"]).value: each for each in operations if each.name == "func.func"
    }
    return _Counting(functions).of_function("main")


class _Counting:
    def __init__(self, functions: dict[str, Any]) -> None:
        self._functions, self._known = functions, dict[str, ProductFlops]()

    def of_function(self, name: str) -> ProductFlops:
        if name not in self._known:
            self._known[name] = ProductFlops()  # one that calls itself does not end here
            self._known[name] = self._of_region(self._functions[name].regions[0])
        return self._known[name]

    def _of_region(self, region: Any) -> ProductFlops:
        return sum((self._of(each.operation) for block in region.blocks for each in block.operations), ProductFlops())

    def _of(self, operation: Any) -> ProductFlops:
        if operation.name == _PRODUCT:
            return _product(operation)
        if operation.name == _CONVOLUTION:
            return _convolution(operation)
        if operation.name == "func.call":
            return self.of_function(ir.FlatSymbolRefAttr(operation.attributes["callee"]).value)
        inside = [self._of_region(region) for region in operation.regions]
        if operation.name in _ARMS:
            return min(inside, key=lambda arm: arm.total)
        if operation.name == _LOOP:
            return inside[1].times(_turns(operation))
        return sum(inside, ProductFlops())


def _product(operation: Any) -> ProductFlops:
    numbers = str(operation.attributes["dot_dimension_numbers"])
    left, made = _shape(operation.operands[0]), _shape(operation.results[0])
    flops = 2.0 * math.prod(made) * math.prod(left[dim] for dim in _dims(numbers, "lhs_contracting_dimensions"))
    return ProductFlops(batched=flops) if _dims(numbers, "lhs_batching_dimensions") else ProductFlops(single=flops)


def _shape(value: Any) -> list[int]:
    return [
        max(0, dim) for dim in ir.RankedTensorType(value.type).shape
    ]  # one that is not known before it runs is negative


def _dims(numbers: str, name: str) -> list[int]:
    _, found, rest = numbers.partition(f"{name} = [")
    return [int(dim) for dim in rest.partition("]")[0].split(",")] if found else []


def _convolution(operation: Any) -> ProductFlops:
    numbers = str(operation.attributes["dimension_numbers"])  # [b, 0, f]x[0, i, o]->[b, 0, f]
    kernel = _shape(operation.operands[1])
    of_outputs = kernel[numbers.partition("x[")[2].partition("]")[0].split(", ").index("o")]
    made = math.prod(_shape(operation.results[0]))
    return ProductFlops(single=2.0 * made * math.prod(kernel) / of_outputs)


def _turns(loop: Any) -> int:
    """Of a loop that counts up to a constant, as `jax.lax.scan` and `fori_loop` write theirs; 1 for any other."""
    condition, body = (region.blocks[0] for region in loop.regions)
    compared = _made_by(_returned(condition)[0], "stablehlo.compare")
    if compared is None or str(compared.attributes["comparison_direction"]) != _LESS:
        return 1
    counter, end = compared.operands[0], _integer(compared.operands[1])
    numbers = [number for number, argument in enumerate(condition.arguments) if argument == counter]
    if end is None or not numbers:
        return 1
    start, added = _integer(loop.operands[numbers[0]]), _made_by(_returned(body)[numbers[0]], "stablehlo.add")
    step = None if added is None or added.operands[0] != body.arguments[numbers[0]] else _integer(added.operands[1])
    return 1 if start is None or step is None or step < 1 else max(0, -(-(end - start) // step))


def _returned(block: Any) -> Any:
    return block.operations[len(block.operations) - 1].operation.operands


def _made_by(value: Any, name: str) -> Any:
    """The operation of that name that made a value; None where another did."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) or owner.operation.name != name else owner.operation


def _integer(value: Any) -> int | None:
    constant = _made_by(value, "stablehlo.constant")
    if constant is None or not isinstance(ir.RankedTensorType(value.type).element_type, ir.IntegerType):
        return None
    return int(ir.DenseIntElementsAttr(constant.attributes["value"])[0])
