"""Layer-wise relevance propagation written out: every layer's matrix of messages from its outputs to its inputs.

One image at a time, relevance (not gradients) handed down layer by layer through a forward pass of
our own of a plain ViT or Swin. Each step says how much it kept for itself (bias, epsilon, softmax
remainder), so that the books can be balanced to the last digit.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def value(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    sites: list[tuple[str, int]],
    gamma: float = 0.25,
) -> Tensor:
    """(A,) mean over images of |R_h| / sum over the layer's heads of |R|."""
    total = 0
    for image in images:
        books = Books(model, image, gamma)
        shares = []
        for (_, heads), (z, _, _) in zip(sites, books.cuts, strict=True):
            per_head = torch.stack([z[:, :, h].sum() for h in range(heads)]).abs()
            shares.append(per_head / per_head.sum())
        total = total + torch.cat(shares)
    return total / len(images)


class Books:
    """LRP of one image. logit: the explained one.

    cuts: per attention, from input to output: relevance of z (windows, tokens, H, D); relevance
        beside it; what all steps between it and the logit kept for themselves. neurons: per MLP
        (N,) relevance of what enters its last layer. patches: relevance of the patch embeddings.
    """

    def __init__(
        self, model: nn.Module, image: Tensor, gamma: float, label: int | None = None
    ) -> None:
        self.gamma, self.kept, self.cuts, self.neurons = (
            gamma,
            torch.tensor(0.0, dtype=torch.float64),
            [],
            [],
        )
        with torch.no_grad():
            self.patches = (self.swin if hasattr(model, "layers") else self.vit)(
                model, image, label
            )
            self.cuts.reverse()
            self.neurons.reverse()

    def start(self, logits: Tensor, label: int | None) -> Tensor:
        best = int(logits.argmax()) if label is None else label
        self.logit = logits[best]
        relevance = torch.zeros_like(logits)
        relevance[best] = self.logit
        return relevance

    # whole models: forward, remembering every input; then backward

    def vit(self, model, image, label):
        x = patches = model.patch_embed(image[None])[0]
        prefix = [token[0] for token in (model.cls_token, model.reg_token) if token is not None]
        x = (
            x + model.pos_embed[0, len(model.pos_embed[0]) - len(x) :]
            if model.no_embed_class
            else x
        )
        x = torch.cat([*prefix, x])
        x = x if model.no_embed_class else x + model.pos_embed[0]
        steps = []
        for block in model.blocks:
            x = self.block(block, x, steps, None)
        normed = model.norm(x)
        first = model.num_prefix_tokens
        pooled = normed[0] if model.global_pool == "token" else normed[first:].mean(0)
        last = model.fc_norm(pooled)
        relevance = self.start(model.head(last), label)
        relevance = self.linear(model.head, last[None], relevance[None])[0]
        relevance = self.norm(model.fc_norm, pooled[None], relevance[None])[0]
        spread = torch.zeros_like(x)
        if model.global_pool == "token":
            spread[0] = relevance
        else:
            spread[first:] = normed[first:] / (len(x) - first) * over(relevance, pooled)
        relevance = self.norm(model.norm, x, spread)
        for step in reversed(steps):
            relevance = step(relevance)
        tokens = x_in = torch.cat([*prefix, patches])
        whole = x_in if model.no_embed_class else tokens + model.pos_embed[0]
        return (tokens * over(relevance, whole))[first:].sum(1)

    def swin(self, model, image, label):
        x = patches = model.patch_embed(image[None])[0]
        height, width, _ = x.shape
        x = x.flatten(0, 1)
        steps = []
        for layer in model.layers:
            if not isinstance(layer.downsample, nn.Identity):
                x, height, width = self.merge(layer.downsample, x, height, width, steps)
            for block in layer.blocks:
                x = self.block(block, x, steps, (height, width))
        normed = model.norm(x)
        pooled = normed.mean(0)
        relevance = self.start(model.head.fc(pooled), label)
        relevance = self.linear(model.head.fc, pooled[None], relevance[None])[0]
        relevance = self.norm(model.norm, x, normed / len(x) * over(relevance, pooled))
        for step in reversed(steps):
            relevance = step(relevance)
        return relevance.view_as(patches).sum(-1)

    def block(self, block, x, steps, grid):
        """x + attention(norm(x)), then x + mlp(norm(x)); pushes the ways back."""
        attention, scale1, scale2 = (
            block.attn,
            getattr(block, "ls1", None),
            getattr(block, "ls2", None),
        )
        n1 = block.norm1(x)
        windows = (
            [list(range(len(x)))]
            if grid is None
            else cut(grid, attention.window_size, block.shift_size)
        )
        written, inner = self.attention(attention, n1, windows, grid, block)
        added = written if not hasattr(scale1, "gamma") else written * scale1.gamma
        middle = x + added
        n2 = block.norm2(middle)
        h1 = block.mlp.fc1(n2)
        h2 = nn.functional.gelu(h1)
        h3 = block.mlp.fc2(h2)
        more = h3 if not hasattr(scale2, "gamma") else h3 * scale2.gamma
        out = middle + more

        def back(relevance):
            share = over(relevance, out)
            branch = self.linear(block.mlp.fc2, h2, more * share)  # a scale hands everything on
            self.neurons.append(branch.sum(0))
            branch = self.linear(block.mlp.fc1, n2, branch)  # and so does GELU
            relevance = middle * share + self.norm(block.norm2, middle, branch)
            share = over(relevance, middle)
            beside = x * share
            return beside + self.norm(block.norm1, x, inner(added * share, beside.sum()))

        steps.append(back)
        return out

    def attention(self, module, x, windows, grid, block):
        """The attention's output (T, C), and the way back: relevance of it -> relevance of x."""
        heads, width = module.num_heads, module.qkv.out_features // 3 // module.num_heads
        padded = torch.cat([x, torch.zeros_like(x[:1])])  # place -1 is padding
        done, written = [], torch.zeros(len(x), module.proj.out_features, dtype=x.dtype)
        for number, places in enumerate(windows):
            inputs = padded[places]
            qkv = module.qkv(inputs).view(len(places), 3, heads, width)
            zs, notes = [], []
            for h in range(heads):
                q, k, v = qkv[:, 0, h], qkv[:, 1, h], qkv[:, 2, h]
                if hasattr(module, "q_norm") and not isinstance(module.q_norm, nn.Identity):
                    qn, kn = module.q_norm(q), module.k_norm(k)
                else:
                    qn, kn = q, k
                scores = qn @ kn.T * width**-0.5
                fixed = torch.zeros_like(scores)
                if grid is not None:
                    fixed = fixed + module._get_rel_pos_bias()[0, h]
                    if block.attn_mask is not None:
                        fixed = fixed + block.attn_mask[number]
                weights = (scores + fixed).softmax(-1)
                zs.append(weights @ v)
                notes.append((q, k, v, qn, kn, scores, fixed, weights))
            z = torch.cat(zs, 1)
            out = module.proj(z)
            for row, place in enumerate(places):
                if place >= 0:
                    written[place] = out[row]
            done.append((places, inputs, z, out, notes))

        def back(relevance, beside):
            relevance_of_x = torch.zeros_like(x)
            cut_z, arriving = [], []
            for places, _, z, _, _ in done:
                of_out = torch.stack(
                    [relevance[p] if p >= 0 else torch.zeros_like(relevance[0]) for p in places]
                )
                arriving.append(self.linear(module.proj, z, of_out))
                cut_z.append(arriving[-1].view(len(places), heads, width))
            self.cuts.append((torch.stack(cut_z), beside, self.kept.clone()))
            for (places, inputs, z, _, notes), of_z in zip(done, arriving, strict=True):
                of_qkv = torch.zeros(len(places), 3, heads, width, dtype=x.dtype)
                for h, (q, k, v, qn, kn, scores, fixed, weights) in enumerate(notes):
                    cols = slice(h * width, (h + 1) * width)
                    # z_id = sum_j A_ij v_jd: half of every term's relevance to A, half to v
                    terms = weights[:, :, None] * v[None] * over(of_z[:, cols], z[:, cols])[:, None]
                    of_weights, of_v = terms.sum(2) / 2, terms.sum(0) / 2
                    # softmax: s_i (R_i - A_i sum R)
                    total = scores + fixed
                    of_total = total * (of_weights - weights * of_weights.sum(1, keepdim=True))
                    self.kept += of_weights.sum() - of_total.sum()
                    of_scores = scores * over(of_total, total)
                    self.kept += of_total.sum() - of_scores.sum()
                    terms = (
                        qn[:, None] * kn[None] * width**-0.5 * over(of_scores, scores)[:, :, None]
                    )
                    of_q, of_k = terms.sum(1) / 2, terms.sum(0) / 2
                    if qn is not q:
                        of_q, of_k = (
                            self.norm(module.q_norm, q, of_q),
                            self.norm(module.k_norm, k, of_k),
                        )
                    of_qkv[:, 0, h], of_qkv[:, 1, h], of_qkv[:, 2, h] = of_q, of_k, of_v
                of_inputs = self.linear(module.qkv, inputs, of_qkv.flatten(1))
                for row, place in enumerate(places):
                    if place >= 0:
                        relevance_of_x[place] += of_inputs[row]
            return relevance_of_x

        return written, back

    def merge(self, module, x, height, width, steps):
        """Swin's patch merging: the four tokens of a 2 x 2 square side by side, norm, linear."""
        rows = []
        for r in range(0, height, 2):
            for c in range(0, width, 2):
                # timm's order: down first, then across
                square = [(r, c), (r + 1, c), (r, c + 1), (r + 1, c + 1)]
                rows.append([a * width + b if a < height and b < width else -1 for a, b in square])
        padded = torch.cat([x, torch.zeros_like(x[:1])])
        joined = torch.stack([padded[row].flatten() for row in rows])
        normed = module.norm(joined)
        out = module.reduction(normed)

        def back(relevance):
            of_joined = self.norm(
                module.norm, joined, self.linear(module.reduction, normed, relevance)
            )
            of_x = torch.zeros_like(x)
            for row, parts in zip(rows, of_joined.view(len(rows), 4, -1), strict=True):
                for place, part in zip(row, parts, strict=True):
                    if place >= 0:
                        of_x[place] += part
            return of_x

        steps.append(back)
        return out, (height + 1) // 2, (width + 1) // 2

    # rules

    def linear(self, module, x, relevance):
        """Gamma rule, message by message: (rows, in, out)."""
        contributions = x[:, :, None] * module.weight.T[None]
        if module.bias is not None:
            bias = module.bias.expand(len(x), 1, -1)
            contributions = torch.cat([contributions, bias], 1)
        out = contributions.sum(1, keepdim=True)
        same_sign = (contributions * out > 0).double()
        messages = contributions * (1 + self.gamma * same_sign)
        total = messages.sum(1, keepdim=True)
        messages = messages * over(relevance[:, None], total)
        self.kept += relevance.sum() - messages[:, : x.shape[1]].sum()
        return messages[:, : x.shape[1]].sum(2)

    def norm(self, module, x, relevance):
        """(x - mean) / deviation * weight + bias, the deviation a constant."""
        if isinstance(module, nn.Identity):
            return relevance
        channels = x.shape[-1]
        deviation = (
            (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + module.eps
        ).sqrt()
        centre = torch.eye(channels, dtype=x.dtype) - 1 / channels
        result = torch.zeros_like(x)
        for t in range(len(x)):
            matrix = centre * module.weight / deviation[t]  # (in, out)
            contributions = x[t][:, None] * matrix
            out = contributions.sum(0) + module.bias
            result[t] = (contributions * over(relevance[t], out)).sum(1)
        self.kept += relevance.sum() - result.sum()
        return result


def over(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where nothing is divided by nothing."""
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))


def cut(grid: tuple[int, int], size: tuple[int, int], shift: tuple[int, int]) -> list[list[int]]:
    """Tokens of each window, row by row: the grid moved up and left by ``shift`` around the torus, padded with -1."""
    height, width = grid
    windows = []
    for top in range(0, height, size[0]):
        for left in range(0, width, size[1]):
            places = []
            for r in range(top, top + size[0]):
                for c in range(left, left + size[1]):
                    inside = r < height and c < width
                    places.append(
                        (r + shift[0]) % height * width + (c + shift[1]) % width if inside else -1
                    )
            windows.append(places)
    return windows
