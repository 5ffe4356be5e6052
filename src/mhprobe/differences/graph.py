"""The blocks of a vision transformer in an ONNX graph: found by the order and the form of its operators.

A block is a softmax over keys (or a fused attention), the projection behind it, and two residual
sums: the first adds the projection to the stream that came to the block, the second adds the MLP to
what the first gave. Nothing is read from names, which exporters choose as they like.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from mhprobe.errors import UserError

FUSED = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedAttention", "QAttention")
PRODUCTS = (
    "MatMul",
    "Gemm",
    "MatMulInteger",
    "QLinearMatMul",
    "QGemm",
    "MatMulNBits",
    "FusedMatMul",
)
SUMS = ("Add", "QLinearAdd")
# the same values in another form, or in another precision
_SAME = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
# between a softmax and the values: a row that is masked as a whole becomes 0
_GUARDS = ("Dropout", "IsNaN", "Where")
_PRECISION = ("Cast", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


class Place(NamedTuple):
    """Tensors of one block.

    attention: the result of the softmax, or of the fused operator. fused: the latter's kind, else
    "". heads: in front of the output projection. before, middle, after: of the stream. neurons: in front of
    the MLP's last layer; "" where there is none.
    """

    attention: str
    fused: str
    heads: str
    before: str
    middle: str
    after: str
    neurons: str


class Graph:
    """An ONNX graph with the ways through it. proto: an ``onnx.ModelProto``."""

    def __init__(self, proto: Any) -> None:
        self.nodes = list(proto.graph.node)
        self.made = {name: node for node in self.nodes for name in node.output}
        self.used: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in node.input:
                self.used.setdefault(name, []).append(node)
        self.order = {id(node): at for at, node in enumerate(self.nodes)}
        held = {tensor.name for tensor in proto.graph.initializer}
        self.inputs = [value for value in proto.graph.input if value.name not in held]
        self.moving = self._moving()

    def _moving(self) -> set[str]:
        """Names of the tensors that depend on the pixels, and not only on the form of the input."""
        moving = {value.name for value in self.inputs}
        for node in self.nodes:
            if node.op_type not in ("Shape", "Size") and moving & set(node.input):
                moving |= set(node.output)
        return moving

    def places(self) -> list[Place]:
        """Return the blocks from input to output. UserError where one cannot be taken apart."""
        found = (self._place(node) for node in self.nodes if self._attends(node))
        return [place for place in found if place is not None]

    def _attends(self, node: Any) -> bool:
        """True for a fused attention, and for a softmax of pixels that is multiplied with pixels."""
        if node.op_type in FUSED:
            return True
        if node.op_type != "Softmax" or node.output[0] not in self.moving:
            return False
        products = [other for other in self._next(node.output[0]) if other.op_type in PRODUCTS]
        return any(all(name in self.moving for name in self._factors(one)) for one in products)

    def _factors(self, node: Any) -> list[str]:
        """Names of the two factors of a product."""
        return [node.input[0], node.input[3 if node.op_type == "QLinearMatMul" else 1]]

    def _next(self, name: str) -> Iterator[Any]:
        """Yield the operators that use a tensor, past those that only change its form or precision, or guard it."""
        for node in self.used.get(name, ()):
            if node.op_type in (*_SAME, *_PRECISION, *_GUARDS):
                yield from self._next(node.output[0])
            else:
                yield node

    def _place(self, node: Any) -> Place | None:
        name = node.output[0]
        projection = self._projection(name)
        if projection is None:
            return None
        first = self._residual(name, projection)
        if first is None:  # attention that pools tokens, behind the blocks, adds to no stream
            return None
        middle, before = first
        last = self._second(middle)
        if last is None:
            raise UserError(
                f"diff: {node.name or name}: behind its residual sum {middle} no second one was "
                "found, so the block cannot be taken apart. Export it without fused norms."
            )
        after, written = last
        mlp = self._made_by(written)
        neurons = "" if mlp is None else self.base(mlp.input[0], _PRECISION)
        heads = self.base(projection.input[0], _PRECISION)
        fused = node.op_type if node.op_type in FUSED else ""
        return Place(name, fused, heads, before, middle, after, neurons)

    def _projection(self, name: str) -> Any:
        """The first product with weights behind a tensor."""
        return self._first_behind([name], self._weighted)

    def _weighted(self, node: Any) -> bool:
        return node.op_type in PRODUCTS and not all(
            name in self.moving for name in self._factors(node)
        )

    def _residual(self, name: str, projection: Any) -> tuple[str, str] | None:
        """The first sum behind attention with a tensor from elsewhere: its name, and the stream's."""
        behind = self._all_behind([name])
        reached = self._all_behind(projection.output)

        def adds(node: Any) -> bool:
            terms = self._terms(node)
            return node.op_type in SUMS and len(terms) == 2 and not {*terms} <= behind

        node = self._first_behind(list(projection.output), adds)
        if node is None:
            return None
        others = [term for term in self._terms(node) if term not in reached]
        return node.output[0], self.base(others[0], _PRECISION)

    def _second(self, middle: str) -> tuple[str, str] | None:
        """The sum of a tensor with what is made of it: its name, and the name of the other term."""
        for node in sorted(self._users(middle), key=lambda one: self.order[id(one)]):
            terms = self._terms(node)
            if node.op_type not in SUMS or len(terms) != 2:
                continue
            own = [self.base(term, (*_SAME, *_PRECISION)) for term in terms]
            if own.count(self.base(middle, (*_SAME, *_PRECISION))) == 1:
                other = terms[1 - own.index(self.base(middle, (*_SAME, *_PRECISION)))]
                return node.output[0], other
        return None

    def _users(self, name: str) -> Iterator[Any]:
        """Yield the operators that use a tensor, in whatever form or precision."""
        for node in self.used.get(name, ()):
            yield node
            if node.op_type in (*_SAME, *_PRECISION):
                yield from self._users(node.output[0])

    def _terms(self, node: Any) -> list[str]:
        """Names of the terms of a sum that depend on the pixels."""
        terms = [node.input[0], node.input[3]] if node.op_type == "QLinearAdd" else node.input[:2]
        return [term for term in terms if term in self.moving]

    def _made_by(self, name: str) -> Any:
        """The last product with weights that a tensor is made by."""
        reached = {name}
        for node in reversed(self.nodes):
            if not reached & set(node.output):
                continue
            if self._weighted(node):
                return node
            reached |= {one for one in node.input if one in self.moving}
        return None

    def _first_behind(self, names: Iterable[str], fits: Any) -> Any:
        """The first operator, in the graph's order, that uses what comes of these tensors and fits."""
        reached = set(names)
        for node in self.nodes:
            if not reached & set(node.input):
                continue
            if fits(node):
                return node
            if node.op_type not in ("Shape", "Size"):
                reached |= set(node.output)
        return None

    def _all_behind(self, names: Iterable[str]) -> set[str]:
        reached = set(names)
        for node in self.nodes:
            if node.op_type not in ("Shape", "Size") and reached & set(node.input):
                reached |= set(node.output)
        return reached

    def base(self, name: str, through: tuple[str, ...]) -> str:
        """Return the tensor that one was made of by operators of these kinds alone."""
        node = self.made.get(name)
        while node is not None and node.op_type in through and node.input[0] in self.moving:
            name = node.input[0]
            node = self.made.get(name)
        return name
