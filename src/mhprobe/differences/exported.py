"""An ONNX file as a side of a comparison: ONNX Runtime runs it with its streams, heads and attention as outputs.

For a pass on another network's stream the graph is cut at the streams: what used them gets an input
instead. So each block, and each block's MLP, is fed as a PyTorch network is (``passes.py``).

Shapes: B images, T tokens, C channels, R rows (images x windows), H heads, D head width, N neurons.
"""

import importlib.util
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhprobe.differences.graph import Graph, Place
from mhprobe.differences.nulls import joined
from mhprobe.differences.passes import Pass, chosen_queries
from mhprobe.differences.sides import Torch
from mhprobe.errors import UserError, first_line, refusing
from mhprobe.heads import HeadSite, Stream

_KINDS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
FED = "mhprobe_fed_"
ADVICE = "Give an export of this network, at its image size."
HIDING = (
    ("QLinear", "gives integers and no attention: quantise in the QDQ form, not as QOperator."),
    ("Skip", "hides the residual stream: give the export before its norms were fused."),
)


class Onnx:
    """An ONNX file whose blocks are those of a PyTorch network.

    hidden: why it shows no blocks, so that only ``logits`` can be compared; "" where it does.

    file: .onnx. a: the network that it was exported from. image: (1, 3, height, width), normalised,
    by which the two are held against each other.
    Raises UserError where onnx or onnxruntime is missing, for a file that cannot be read or run, and
    for one whose blocks are not those of ``a``.
    """

    def __init__(self, file: str | Path, a: Torch, image: Tensor) -> None:
        for package in ("onnx", "onnxruntime"):
            if importlib.util.find_spec(package) is None:
                raise UserError(
                    f"diff: {file} needs the package {package}: pip install 'mhprobe[export]'."
                )
        self.file, self.name = Path(file), Path(file).name
        self.layout, self.kept = a.layout, dict(a.kept)
        self.notes: list[str] = []
        proto = _read(self.file)
        graph = Graph(proto)
        self.input, self.most = _image_input(self.name, graph, image)
        self.dtype = _precision(proto)
        self.sites = [site for site in a.layout.sites if site.kind == "head"]
        self.mlps = [site for site in a.layout.sites if site.kind == "neuron"]
        self.outputs = [value.name for value in proto.graph.output]
        self.hidden = ""
        reference = a.run(image)
        try:
            self.places, self.natural = self._found(proto, graph.places(), reference, image)
        except UserError as error:
            self.hidden = _advice(proto)
            if self.hidden == ADVICE:
                raise
            self.natural = _session(self.name, proto, [])
            self._values(self.natural, image)
            self.output_name = self._logits(image, reference)
            self.notes.append(
                f"Blocks and heads are not compared: {str(error).removeprefix('diff: ')}"
            )
            return
        self.tokens_first: set[str] = self._turned(a, image)
        self.fed = self._cut(proto)
        self.output_name = self._logits(image, reference)

    def run(self, images: Tensor, fed: Pass | None = None) -> Pass:
        """Run it naturally, or on the streams of another pass, as many images at a time as it takes."""
        step = self.most or len(images)
        parts = []
        for at in range(0, len(images), step):
            here = slice(at, at + step)
            given = None if fed is None else _part(fed, here)
            parts.append(self._run(images[here], given))
        return parts[0] if len(parts) == 1 else joined(parts)

    def logits(self, images: Tensor) -> Tensor:
        """(B, classes) of as many images at a time as it takes."""
        parts = []
        for part in images.split(self.most or len(images)):
            self._refuse_few(len(part))
            found = self._values(self.natural, part)[self.output_name]
            value = torch.from_numpy(found).float()
            parts.append(value.mean(1) if value.dim() == 3 else value)
        return torch.cat(parts)

    def output(self, site: HeadSite) -> Tensor | None:
        """None: a graph does not say which weights are W_O, and A's stand for them."""
        return None

    def _run(self, images: Tensor, fed: Pass | None) -> Pass:
        count = len(images)
        self._refuse_few(count)
        feeds = {self.input: images.cpu().numpy().astype(_KINDS[self.kind])}
        session = self.natural if fed is None else self.fed
        names = [output.name for output in session.get_outputs()]
        if fed is not None:
            feeds |= self._streams(fed)
        with refusing(lambda error: f"diff: {self.name} does not run: {first_line(error)[:200]}."):
            values = dict(zip(names, session.run(names, feeds), strict=True))
        found = {name: torch.from_numpy(value) for name, value in values.items() if value.ndim}
        return self._pass(found, count, fed)

    def _refuse_few(self, count: int) -> None:
        if self.most and count < self.most:
            raise UserError(
                f"diff: {self.name} takes exactly {self.most} images at a time, got {count}. Give a "
                f"multiple of {self.most} photographs (--limit), or export it with a free batch size."
            )

    def _streams(self, fed: Pass) -> dict[str, Any]:
        """Return the inputs of the cut graph, from another network's streams."""
        feeds = {}
        for place, stream in zip(self.places, fed.streams, strict=True):
            for name, value in zip((place.before, place.middle, place.after), stream, strict=True):
                shape, kind = self.forms[name]
                feeds[FED + name] = value.cpu().numpy().reshape(-1, *shape).astype(kind)
        wanted = {one.name for one in self.fed.get_inputs()}
        return {name: value for name, value in feeds.items() if name in wanted}

    def _pass(self, found: dict[str, Tensor], count: int, fed: Pass | None) -> Pass:
        arrived, streams = list[Tensor](), list[Stream]()
        for number, place in enumerate(self.places):
            channels = self.widths[number]
            before, middle, after = (
                found[name].reshape(count, -1, channels)
                for name in (place.before, place.middle, place.after)
            )
            if fed is not None:
                given = fed.streams[number]
                # the cut graph adds the MLP to the stream that it was fed, and not to its own
                after = after.double() - given.middle.double() + middle.double()
                if number and self.places[number - 1].after == place.before:
                    before = given.before
                arrived.append(before)
                streams.append(Stream(given.before, middle, after))
                continue
            arrived.append(before)
            streams.append(Stream(before, middle, after))
        heads = [
            _in_rows(found[place.heads], site, count, place.heads in self.tokens_first)
            for place, site in self._each()
        ]
        neurons = [
            found[place.neurons].reshape(count, -1, site.num_heads)
            for place, site in zip(self.places, self.mlps, strict=False)
        ]
        logits = found[self.output_name]
        return Pass(
            tuple(arrived),
            tuple(streams),
            tuple(heads),
            tuple(neurons),
            tuple(self._rows(found, place, site) for place, site in self._each()),
            (logits.mean(1) if logits.dim() == 3 else logits).float(),
        )

    def _each(self) -> Iterator[tuple[Place, HeadSite]]:
        return zip(self.of_sites, self.sites, strict=True)

    def _rows(self, found: dict[str, Tensor], place: Place, site: HeadSite) -> Tensor | None:
        if place.fused:
            return None
        rows = found[place.attention]
        rows = rows.reshape(-1, site.num_heads, *rows.shape[-2:])
        return rows[:, :, chosen_queries(rows.shape[2])]

    def _found(
        self, proto: Any, places: list[Place], reference: Pass, image: Tensor
    ) -> tuple[list[Place], Any]:
        """Hold the blocks of the graph against A's on one image; return them, and a session that shows them.

        UserError for blocks of other numbers, and of other forms.
        """
        names = list(dict.fromkeys(name for place in places for name in _shown(place)))
        session = _session(self.name, proto, names)
        values = self._values(session, image)
        images = self.most or 1
        fits = [place for place in places if self._fits_some(place, values, images)]
        if len(fits) != len(self.sites):
            listed = ", ".join(place.attention for place in places[:4]) or "none"
            raise UserError(
                f"diff: {self.name} has {len(fits)} attentions of the form of those of A, and A has "
                f"{len(self.sites)}, so it is unclear which belong together (found: {listed}). "
                f"{_advice(proto)}"
            )
        streams = _by_site(self.sites, reference)
        for place, site, stream in zip(fits, self.sites, streams, strict=True):
            self._refuse_misfit(place, site, stream, values, images)
        self.of_sites = fits
        by_block = {site.block: place for place, site in zip(fits, self.sites, strict=True)}
        blocks = [by_block[number] for number in range(len(reference.streams))]
        self.widths = [stream.before.shape[-1] for stream in reference.streams]
        self._note_forms(blocks, values, session)
        self._note_fused(fits)
        return blocks, session

    def _note_fused(self, places: Sequence[Place]) -> None:
        """Say in how many blocks attention is one operator, whose weights nobody sees."""
        fused = [place.fused for place in places if place.fused]
        if fused:
            operators = ", ".join(sorted(set(fused)))
            self.notes.append(
                f"{self.name}: attention is one fused operator ({operators}) in {len(fused)} of "
                f"{len(places)} blocks and shows no weights; the heads' outputs and all else are compared."
            )

    def _note_forms(self, blocks: Sequence[Place], values: Mapping[str, Any], session: Any) -> None:
        """Keep the form of each tensor of the residual stream; leave out MLPs where a block shows none."""
        if not all(place.neurons for place in blocks):
            self.mlps = []
        kinds = {one.name: _KINDS.get(one.type, np.float32) for one in session.get_outputs()}
        shown = [name for place in blocks for name in (place.before, place.middle, place.after)]
        self.forms = {name: (values[name].shape[1:], kinds[name]) for name in shown}

    def _values(self, session: Any, image: Tensor) -> dict[str, Any]:
        """Return all that a session shows of one image, by name; repeated to the graph's batch."""
        self.kind = next(one.type for one in session.get_inputs() if one.name == self.input)
        if self.kind not in _KINDS:
            raise UserError(f"diff: {self.name}: expected an input of floats, got {self.kind}.")
        every = [one.name for one in session.get_outputs()]
        feeds = {self.input: image.cpu().numpy().astype(_KINDS[self.kind])}
        if self.most and len(image) == 1:
            feeds[self.input] = np.repeat(feeds[self.input], self.most, 0)
        with refusing(lambda error: f"diff: {self.name} does not run: {first_line(error)[:200]}."):
            return dict(zip(every, session.run(every, feeds), strict=True))

    def _turned(self, a: Torch, image: Tensor) -> set[str]:
        """Return the heads' tensors whose tokens come before their images, as A's heads on two images tell."""
        if self.most == 1:
            return set()
        images = torch.cat([image, image.flip(-1)] * ((self.most or 2) // 2))[: self.most or 2]
        reference = a.run(images, attention=False)
        names = [place.heads for place in self.of_sites]
        feeds = {self.input: images.cpu().numpy().astype(_KINDS[self.kind])}
        values = dict(zip(names, self.natural.run(names, feeds), strict=True))
        turned = set[str]()
        for (place, site), rows in zip(self._each(), reference.heads, strict=True):
            value = torch.from_numpy(values[place.heads]).float()
            apart = [
                float((_in_rows(value, site, len(images), first) - rows.float()).norm())
                for first in (False, True)
            ]
            if apart[1] < apart[0]:
                turned.add(place.heads)
        return turned

    def _fits_some(self, place: Place, values: dict[str, Any], images: int) -> bool:
        """Return True if a softmax has the form of a site's attention."""
        if place.fused:
            return True
        shape = values[place.attention].shape
        forms = {(site.num_heads, _keys(site)) for site in self.sites}
        heads = shape[-3] if len(shape) > 3 else shape[0] // images
        return len(shape) >= 3 and (heads, shape[-1]) in forms

    def _refuse_misfit(
        self, place: Place, site: HeadSite, stream: Stream, values: dict[str, Any], images: int
    ) -> None:
        for name, expected in (
            (place.before, stream.before),
            (place.middle, stream.middle),
            (place.after, stream.after),
        ):
            got = values[name]
            if got.size != images * expected[0].numel() or got.dtype.kind != "f":
                raise UserError(
                    f"diff: {self.name}: {name} should be the stream of block {site.block}, "
                    f"{tuple(expected.shape[1:])} floats per image, and has {got.size // images} "
                    f"{got.dtype}. Give an export of this network (quantised ones in the QDQ form)."
                )
        heads = values[place.heads]
        if heads.dtype.kind != "f" or heads.shape[-1] != site.channels:
            raise UserError(
                f"diff: {self.name}: {place.heads} should be the {site.num_heads} heads of "
                f"{site.name}, {site.channels} floats per token, and has {heads.shape[-1]} "
                f"{heads.dtype}. Give an export of this network (quantised ones in the QDQ form)."
            )

    def _cut(self, proto: Any) -> Any:
        """Cut the graph where a stream is used, which becomes an input instead; return a session of it."""
        import onnx

        streams = dict.fromkeys(
            name for place in self.places for name in (place.before, place.middle, place.after)
        )
        for node in proto.graph.node:
            for at, name in enumerate(node.input):
                if name in streams:
                    node.input[at] = FED + name
        for name in streams:
            kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self.forms[name][1]))
            proto.graph.input.append(onnx.helper.make_tensor_value_info(FED + name, kind, None))
        names = list(dict.fromkeys(name for place in self.places for name in _shown(place)))
        names += [name for place in self.of_sites for name in _shown(place) if name not in names]
        return _session(self.name, proto, names)

    def _logits(self, image: Tensor, reference: Pass) -> str:
        """Return the name of the output that A's logits, or features, stand against."""
        shapes = {one.name: one.shape for one in self.natural.get_outputs()}
        width = reference.logits.shape[1]
        fits = [name for name in self.outputs if shapes[name] and shapes[name][-1] == width]
        if not fits and len(self.outputs) == 1:
            fits = self.outputs
        if not fits:
            listed = ", ".join(f"{name} {shapes[name]}" for name in self.outputs)
            raise UserError(
                f"diff: {self.name} gives {listed}, and A gives {width} numbers per image: expected "
                "the same classes, or the same features. Export the whole network."
            )
        return min(fits, key=lambda name: len(shapes[name]))


def _advice(proto: Any) -> str:
    """Say which operators hide a block, if there are such, and what to do."""
    kinds = {node.op_type for node in proto.graph.node}
    for hidden, advice in HIDING:
        there = sorted(kind for kind in kinds if kind.startswith(hidden))
        if there:
            return f"Its {there[0]} {advice}"
    return ADVICE


def _read(file: Path) -> Any:
    import onnx

    with refusing(
        lambda error: (
            f"diff: {file} cannot be read as ONNX ({first_line(error)[:150]}). Export it again."
        )
    ):
        proto = onnx.load(str(file))
    if not proto.graph.node:
        raise UserError(
            f"diff: {file} cannot be read as ONNX (it has no operators). Export it again."
        )
    return proto


def _image_input(name: str, graph: Graph, image: Tensor) -> tuple[str, int | None]:
    """Return the input for images, and the number of images that it takes; None for any."""
    of = [value for value in graph.inputs if len(value.type.tensor_type.shape.dim) == 4]
    if len(of) != 1 or len(graph.inputs) != 1:
        listed = ", ".join(value.name for value in graph.inputs) or "none"
        raise UserError(
            f"diff: {name}: expected one input (B, 3, height, width), got {listed}. Give an export of "
            "an image network."
        )
    sides = [dim.dim_value for dim in of[0].type.tensor_type.shape.dim]
    if sides[3] == image.shape[1] and sides[1] != image.shape[1]:
        raise UserError(
            f"diff: {name} takes images as (B, height, width, {sides[3]}), colours last. Export A with "
            f"its own input, (B, {image.shape[1]}, height, width)."
        )
    for got, wanted in zip(sides[1:], image.shape[1:], strict=True):
        if got and got != wanted:
            shapes = [" x ".join(map(str, side)) for side in (sides[1:], image.shape[1:])]
            raise UserError(
                f"diff: {name} takes images of {shapes[0]} and A of {shapes[1]}. Export A at its size, "
                "or give --size."
            )
    return of[0].name, sides[0] or None


def _precision(proto: Any) -> torch.dtype:
    """Return the precision of most weights of a graph that are floats."""
    import onnx

    sizes: dict[int, int] = {}
    for tensor in proto.graph.initializer:
        sizes[tensor.data_type] = sizes.get(tensor.data_type, 0) + int(np.prod(tensor.dims))
    half = sizes.get(onnx.TensorProto.FLOAT16, 0)
    return torch.float16 if half > sizes.get(onnx.TensorProto.FLOAT, 0) else torch.float32


def _shown(place: Place) -> list[str]:
    names = [place.heads, place.before, place.middle, place.after]
    return names + [place.neurons] * bool(place.neurons) + [place.attention] * (not place.fused)


def _session(name: str, proto: Any, shown: list[str]) -> Any:
    """Return a session of a graph that also gives the tensors ``shown``; the graph itself is as it was then.

    It is read from a file, since ONNX Runtime keeps a copy of what it reads from memory.
    """
    import onnx
    import onnxruntime

    there = [value.name for value in proto.graph.output]
    more = [one for one in shown if one not in there]
    proto.graph.output.extend(onnx.ValueInfoProto(name=one) for one in more)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False  # it keeps what it ever had, and batches come and go
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others wait, too
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "graph.onnx")
        onnx.save(proto, str(file))
        del proto.graph.output[len(there) :]
        with refusing(lambda error: _refused(name, file, error)):
            return onnxruntime.InferenceSession(
                str(file), options, providers=["CPUExecutionProvider"]
            )


def _refused(name: str, file: Path, error: Exception) -> str:
    of_opset = re.search(r"Opset (\d+) .* is till opset (\d+)", str(error), re.S)
    said = first_line(error).replace(str(file), name)[:250]
    if of_opset:
        said = f"it is of opset {of_opset[1]}, and this version knows opsets up to {of_opset[2]}"
    return (
        f"diff: ONNX Runtime cannot run {name}: {said}. Export it for an opset and operators that this "
        "version has, and a quantised one with its scales."
    )


def _in_rows(value: Tensor, site: HeadSite, images: int, tokens_first: bool) -> Tensor:
    """(R, T, H * D) of heads as the projection sees them. tokens_first: they lie as (T, R, H * D)."""
    rows = images * len(site.places())
    if tokens_first:
        return value.reshape(-1, rows, site.channels).transpose(0, 1)
    return value.reshape(rows, -1, site.channels)


def _keys(site: HeadSite) -> int:
    return site.places().shape[1]


def _by_site(sites: list[HeadSite], reference: Pass) -> list[Stream]:
    return [reference.streams[site.block] for site in sites]


def _part(fed: Pass, here: slice) -> Pass:
    streams = tuple(Stream(*(place[here] for place in stream)) for stream in fed.streams)
    return fed._replace(streams=streams)
