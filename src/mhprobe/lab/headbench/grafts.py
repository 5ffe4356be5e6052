"""Grafts: trained heads that are changed, grade by grade, until they have a known function.

The grade from which on a measure finds a graft tells how sensitive the measure is; plants are all
or nothing.
"""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from mhprobe.backbones import family_of
from mhprobe.lab.headbench.network import TrainedNetwork, digits
from mhprobe.lab.headbench.plants import SAME, SILENT, Made, by_name, moved_by, share_at
from mhprobe.recording.outputs import objective

GRADES = 5


class Graft(Made):
    """A kind of graft.

    signs: measures that are not named take no part. amounts: by grade, the weakest first. low,
    high: ``shown`` is below ``low`` in heads that are no graft and above ``high`` at the strongest
    grade.
    """

    amounts: ClassVar[tuple[float, ...]]
    low: ClassVar[float]
    high: ClassVar[float]

    @abc.abstractmethod
    def grown(
        self, network: TrainedNetwork, site: int, heads: Sequence[int]
    ) -> Iterator[TrainedNetwork]:
        """A changed copy of ``network`` for each of ``amounts``, the weakest first."""

    @abc.abstractmethod
    def shown(
        self, network: TrainedNetwork, before: TrainedNetwork, site: int, heads: Sequence[int]
    ) -> float:
        """Measure the graft in these heads by an intervention on ``network``; larger means more of it.

        before: the network as it was trained.
        """

    def verified(
        self,
        before: TrainedNetwork,
        strongest: TrainedNetwork,
        site: int,
        heads: Sequence[int],
        others: Sequence[int],
    ) -> bool:
        """Return True if the strongest grade has it, and neither the same heads before nor ``others`` of the layer."""
        untouched = max(
            self.shown(before, before, site, heads), self.shown(strongest, before, site, others)
        )
        return self.shown(strongest, before, site, heads) > self.high and untouched < self.low


class Faded(Graft):
    """A head whose columns of W_O are scaled down, at last to zero."""

    question = "does it hardly write anything?"
    signs = SILENT
    amounts: ClassVar[tuple[float, ...]] = (
        0.5,
        0.25,
        0.1,
        0.03,
        0.0,
    )  # share of its write that is left
    sign = 1
    low, high = 0.3, 0.95

    def grown(
        self, network: TrainedNetwork, site: int, heads: Sequence[int]
    ) -> Iterator[TrainedNetwork]:
        output = network.parts(site, heads[0])["output"]
        return (
            network.changed(site, heads[0], output=self.sign * amount * output)
            for amount in self.amounts
        )

    def shown(
        self, network: TrainedNetwork, before: TrainedNetwork, site: int, heads: Sequence[int]
    ) -> float:
        """1 - (movement of the logits without the head, now) / (the same before)."""
        images, without = digits().verify.images, [(site, heads[0])]
        now, whole = (
            float((n.logits(images) - n.logits(images, without)).abs().mean())
            for n in (network, before)
        )
        return 1 - now / whole if whole > 1e-4 else 0.0  # a head that was silent cannot fade


class Against(Faded):
    """A head that writes its own output with the opposite sign, more at every grade."""

    question = "does it hurt?"
    signs: ClassVar[Mapping[str, int]] = {
        "ablation_delta": -1,
        "logit_attribution": -1,
        "logit_attribution.against": 1,
        "attribution_patching": -1,
    }
    amounts, sign = (0.03, 0.1, 0.3, 1.0, 4.0), -1  # times its own write, with the sign turned
    low, high = 0.01, 0.05  # nats

    def shown(
        self, network: TrainedNetwork, before: TrainedNetwork, site: int, heads: Sequence[int]
    ) -> float:
        """Return the fall of the loss without the head, in nats."""
        return network.loss() - network.loss([(site, heads[0])])


class Copied(Graft):
    """A head that becomes a noisy copy of another, with less noise at every grade."""

    question = "are the two nearly the same?"
    heads = 2
    signs = SAME
    amounts = (8.0, 4.0, 2.0, 1.0, 0.5)  # noise in the copy's weights, over the weights
    low, high = 0.5, 0.9

    def grown(
        self, network: TrainedNetwork, site: int, heads: Sequence[int]
    ) -> Iterator[TrainedNetwork]:
        one, other = heads
        random = torch.Generator().manual_seed(network.seed)
        parts = network.parts(site, one)
        noise = {
            key: p.square().mean().sqrt() * torch.randn(p.shape, generator=random)
            for key, p in parts.items()
        }
        for amount in self.amounts:
            yield network.changed(
                site, other, **{key: part + amount * noise[key] for key, part in parts.items()}
            )

    def shown(
        self, network: TrainedNetwork, before: TrainedNetwork, site: int, heads: Sequence[int]
    ) -> float:
        """Cosine of the writes of the two, each less its mean over tokens."""
        one, other = (network.writes(site, head).flatten(0, 1) for head in heads)
        one = one - one.mean(0)
        other = other - other.mean(0)
        return float((one * other).sum() / (one.norm() * other.norm()).clamp(min=1e-12))


class Neighbour(Graft):
    """A head whose queries and keys are tuned to attend to the left neighbour, longer at every grade."""

    question = "does it look at the previous patch?"
    signs: ClassVar = {
        "token_kinds.neighbours": 1,
        "token_kinds.left": 1,
        "attention_distance": -1,
        "position": 1,
        "entropy": -1,
    }
    amounts = (2, 5, 20, 80, 320)  # steps of tuning
    low, high = 0.25, 0.45  # even attention gives 1 / 17

    def grown(
        self, network: TrainedNetwork, site: int, heads: Sequence[int]
    ) -> Iterator[TrainedNetwork]:
        _, x = network.around_norm(site, digits().train.images[:128])
        at = network.site(site)
        parts = network.parts(site, heads[0])
        tokens = torch.arange(at.token_grid[0] * at.token_grid[1])
        query = (
            tokens[tokens % at.token_grid[1] > 0] + at.prefix_tokens
        )  # tokens that have a left neighbour
        tuned = {
            name: parts[name].requires_grad_()
            for name in ("query", "query_bias", "key", "key_bias")
        }

        def loss() -> Tensor:
            queries = x @ tuned["query"].T + tuned["query_bias"]
            keys = x @ tuned["key"].T + tuned["key_bias"]
            logits = queries @ keys.mT / at.head_dim**0.5
            return -logits.log_softmax(-1)[:, query, query - 1].mean()

        for _ in _steps(self.amounts, [*tuned.values()], loss, 0.01):
            yield network.changed(
                site, heads[0], **{name: part.detach() for name, part in tuned.items()}
            )

    def shown(
        self, network: TrainedNetwork, before: TrainedNetwork, site: int, heads: Sequence[int]
    ) -> float:
        """Share of the write's movement by noise that is due to noise on the left neighbour."""
        stream, _ = network.around_norm(site, digits().verify.images[:8])
        moved = moved_by(network, site, heads[0], stream, torch.eye(stream.shape[-1]))
        return share_at(network.site(site), moved, 0, -1)


class StandIn(Graft):
    """Two heads that replace each other: they and the MLP of their block are tuned to need one, but not both."""

    question = "do the two stand in for each other?"
    heads = 2
    signs: ClassVar = {"interaction": 1, "svcca": 1, "cka": 1, "weight_similarity": 1}
    amounts = (5, 10, 20, 40, 80)  # steps of tuning
    low, high = 0.5, 2 / 3

    def grown(
        self, network: TrainedNetwork, site: int, heads: Sequence[int]
    ) -> Iterator[TrainedNetwork]:
        copy = network.copied()
        at = network.site(site)
        seen = digits().train
        mlp = copy.mlp(site)
        seam = family_of(copy.model).seam(copy.model, at)
        columns = torch.zeros(at.channels, dtype=torch.bool)
        for head in heads:
            columns[head * at.head_dim : (head + 1) * at.head_dim] = True
        keep: dict[Tensor, Tensor] = {}
        for part in (
            seam.attention.parameters()
        ):  # rows of queries, keys and values; columns of the projection
            if len(part) == 3 * at.channels:
                keep[part] = columns.repeat(3).view(-1, *[1] * (part.ndim - 1))
            elif part.ndim == 2:
                keep[part] = columns[None]
        tuned = [*keep, *(part for layer in mlp for part in layer.parameters())]
        on = torch.ones(
            4, at.num_heads
        )  # in the rows both of the pair are on, one, the other, neither
        on[[1, 3], heads[0]] = on[[2, 3], heads[1]] = 0
        on = on.repeat_interleave(at.head_dim, 1)
        generator = torch.Generator().manual_seed(network.seed)
        gate = seam.point.register_forward_pre_hook(
            lambda _, args: (args[0] * on.repeat_interleave(len(args[0]) // 4, 0)[:, None],)
        )

        def loss() -> Tensor:
            rows = torch.randint(len(seen.labels), (32,), generator=generator)
            logits = copy.model(seen.images[rows].repeat(4, 1, 1, 1))
            losses = objective(logits, seen.labels[rows].repeat(4), "loss")
            both, one, other, neither = losses.unflatten(0, (4, -1)).mean(1)
            return (
                both + one + other + (1.5 - neither).clamp(min=0)
            )  # so many nats of loss without both are enough

        for _ in _steps(self.amounts, tuned, loss, 3e-3, keep):
            grown = copy.copied()
            family_of(grown.model).seam(grown.model, at).point._forward_pre_hooks.clear()
            yield grown
        gate.remove()

    def shown(
        self, network: TrainedNetwork, before: TrainedNetwork, site: int, heads: Sequence[int]
    ) -> float:
        """1 - (larger cost of one head) / (cost of both), where both cost 0.05 nats or more; else 0."""
        whole = network.loss()
        alone = max(abs(network.loss([(site, head)]) - whole) for head in heads)
        both = network.loss([(site, head) for head in heads]) - whole
        return max(0.0, 1 - alone / both) if both > 0.05 else 0.0


def _steps(
    amounts: Sequence[float],
    tuned: Sequence[Tensor],
    loss: Callable[[], Tensor],
    rate: float,
    keep: Mapping[Tensor, Tensor] = MappingProxyType({}),
) -> Iterator[None]:
    """Tune by Adam; pause after each number of steps in ``amounts``.

    keep: per tensor, the entries that may move.
    """
    optimizer = torch.optim.Adam(tuned, lr=rate)
    for step in range(1, int(amounts[-1]) + 1):
        with torch.enable_grad():
            slopes = torch.autograd.grad(loss(), tuned)
        for part, slope in zip(tuned, slopes, strict=True):
            part.grad = slope * keep[part] if part in keep else slope
        optimizer.step()
        if step in amounts:
            yield


def known_grafts() -> dict[str, Graft]:
    return by_name(Graft)  # type: ignore[type-abstract]
