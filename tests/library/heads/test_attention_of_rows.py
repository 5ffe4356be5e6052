"""Weights of attention from queries and keys: which of their parts belong to an image, and which to all."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from mhprobe.heads.attention import Paired, Product, Shown

EVERY = torch.arange(3), torch.arange(5)


def made(rows: int, mask=None, **options) -> Paired:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 3, 2, 5, 4, dtype=torch.float64)[:, :rows]
    return Paired(2, Product(query, key, value, attn_mask=mask, **options))


@pytest.mark.parametrize("shape", [(1, 2, 5, 5), (5, 5), (1, 1, 5, 5)])
def test_a_bias_that_all_images_share_is_no_part_of_one(shape):
    bias = torch.randn(shape, dtype=torch.float64)
    three, one = made(3, bias), made(1, bias)
    assert len(three.parts()) == len(one.parts()) == 2  # a last batch may hold one image
    again = one.of(three.parts())
    assert again.shape == three.shape
    torch.testing.assert_close(again.at(*EVERY), three.at(*EVERY))
    assert (three.at(*EVERY) - made(3).at(*EVERY)).abs().max() > 0.1  # negative control


def test_a_mask_of_each_image_goes_with_it():
    mask = torch.rand(3, 1, 5, 5) > 0.4
    mask[..., 0] = True
    three = made(3, mask)
    assert len(three.parts()) == 3
    last = three.of([part[2:] for part in three.parts()])
    torch.testing.assert_close(last.at(torch.arange(1), EVERY[1])[0], three.at(*EVERY)[2])


@pytest.mark.parametrize("shape", [(3, 2, 5, 5), (1, 2, 5, 5)])
def test_a_form_holds_no_numbers_and_makes_the_weights_from_their_parts(shape):
    three = made(3, torch.randn(shape, dtype=torch.float64), scale=0.3)
    form = three.form()
    assert sum(part.numel() for part in form.parts()) == 0
    torch.testing.assert_close(form.of(three.parts()).at(*EVERY), three.at(*EVERY))
    of_others = made(3, scale=0.3).form().of(three.parts()[:2])
    assert (of_others.at(*EVERY) - three.at(*EVERY)).abs().max() > 0.1  # negative control


def test_the_form_of_a_matrix_holds_no_numbers_either():
    matrix = Shown(torch.rand(3, 2, 5, 5))
    form = matrix.form()
    assert sum(part.numel() for part in form.parts()) == 0
    assert torch.equal(form.of(matrix.parts()).at(*EVERY), matrix.at(*EVERY))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_weights_times_values_and_their_slopes_are_those_of_torchs_own_attention(options):
    made_of = made(3, **options)
    query, key = made_of.parts()
    value = made_of.value.clone().requires_grad_()
    result = scaled_dot_product_attention(query, key, value, **options)
    torch.testing.assert_close(made_of.at(*EVERY) @ value, result, rtol=1e-12, atol=1e-12)
    slope = torch.randn_like(result)
    sloped = made_of.kept(values=True).sloped(slope)
    torch.testing.assert_close(sloped.slopes_at(*EVERY), slope @ value.mT, rtol=1e-12, atol=1e-12)
