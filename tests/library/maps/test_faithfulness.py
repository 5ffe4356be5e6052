from __future__ import annotations

import pytest
import torch
from torch import nn

import mhprobe
from mhprobe.errors import UserError
from mhprobe.maps.faithfulness import area_under, blurred, faithfulness
from models import images_for, tiny_swin, tiny_vit
from oracles import maps as oracle


class OnePatch(nn.Module):
    """Sure of class 1 exactly while the top left quarter of an 8 x 8 image is bright, and of class 0 otherwise."""

    def forward(self, images):
        bright = images[:, :, :4, :4].mean((1, 2, 3)) > 0.9
        return torch.where(bright[:, None], torch.tensor([0.0, 99.0]), torch.tensor([99.0, 0.0]))


def test_a_map_that_knows_the_patch_falls_at_once_and_rises_at_once():
    images = torch.zeros(1, 3, 8, 8)
    images[:, :, :4, :4] = 1
    right = torch.tensor([[[1.0, 0], [0, 0]]])
    wrong = torch.tensor([[[-1.0, 0], [0, 0]]])
    good, bad = faithfulness(OnePatch(), images, [right, wrong], steps=4, random_orders=200)
    # trapezoids over quarters: 1, 0, 0, 0, 0 and 0, 1, 1, 1, 1
    assert good.deletion.item() == pytest.approx(0.125) and good.insertion.item() == pytest.approx(
        0.875
    )
    assert bad.deletion.item() == pytest.approx(0.875) and bad.insertion.item() == pytest.approx(
        0.125
    )
    # a random order meets the patch anywhere: half; 200 draws of deviation 0.28
    assert good.random_deletion.item() == pytest.approx(0.5, abs=0.08)
    assert good.random_insertion.item() == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
def test_areas_match_a_loop_over_patches(build):
    model = build().double()
    images = images_for(model, 3, dtype=torch.float64)
    side = model.patch_embed.grid_size
    maps = torch.rand(3, *side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (found,) = faithfulness(model, images, [maps], steps=5, random_orders=1)
    drawn = torch.stack(
        [torch.rand(*side, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    )
    for n in range(3):
        image, grey = images[n], images[n].mean((1, 2), keepdim=True).expand_as(images[n])
        target = int(model(images[n : n + 1]).argmax())
        for order, deletion, insertion in (
            (maps, found.deletion, found.insertion),
            (drawn, found.random_deletion, found.random_insertion),
        ):
            expected = oracle.area(model, image, grey, order[n], target, 5)
            assert deletion[n].item() == pytest.approx(expected, rel=1e-9)
            expected = oracle.area(model, grey, image, order[n], target, 5)
            assert insertion[n].item() == pytest.approx(expected, rel=1e-9)


def test_of_features_the_cosine_to_those_of_the_whole_image_is_watched():
    model = tiny_vit(num_classes=0).double()
    images = images_for(model, 2, dtype=torch.float64)
    maps = torch.rand(2, *model.patch_embed.grid_size, generator=torch.Generator().manual_seed(0))
    (found,) = faithfulness(model, images, [maps], steps=1, random_orders=1, features=True)
    with torch.no_grad():
        whole, grey = model(images), model(images.mean((2, 3), keepdim=True).expand_as(images))
    cosine = torch.nn.functional.cosine_similarity(whole, grey)
    # one step: all patches at once, half of (1 + cosine)
    torch.testing.assert_close(found.deletion, (1 + cosine) / 2, check_dtype=False)
    torch.testing.assert_close(found.insertion, (1 + cosine) / 2, check_dtype=False)
    assert (cosine < 0.99).all()


def test_a_flat_map_goes_in_raster_order():
    images = torch.zeros(1, 3, 8, 8)
    images[:, :, :4, :4] = 1
    sure = lambda shown: OnePatch()(shown).softmax(1)[:, 1]  # noqa: E731
    flat = area_under(sure, images, torch.zeros_like(images), torch.zeros(1, 2, 2), 4)
    assert flat.item() == pytest.approx(0.125)


def test_a_blur_leaves_the_colour_and_takes_the_patches():
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    blur = blurred(images, torch.Size((8, 8)))
    assert blur.shape == images.shape
    torch.testing.assert_close(blur.mean((2, 3)), images.mean((2, 3)), atol=0.05, rtol=0)
    assert blur.std() < 0.2 * images.std()
    constant = torch.full((1, 3, 32, 32), 0.3)
    torch.testing.assert_close(blurred(constant, torch.Size((8, 8))), constant)


def test_random_orders_are_reproducible_and_the_model_is_left_as_it_was():
    model = tiny_vit().train()
    mhprobe.attach(model)
    images, maps = images_for(model, 2), torch.rand(2, 4, 4)
    a, b = (
        faithfulness(model, images, [maps], steps=3, random_orders=2, baseline="blur")
        for _ in range(2)
    )
    assert all(torch.equal(x, y) for x, y in zip(a[0], b[0], strict=True))
    assert model.training


def test_the_random_orders_of_an_image_are_its_own_whatever_the_batch():
    """They were those of its place in the batch: images of one place shared them, and the batch size changed areas."""
    model = tiny_vit().double()
    images = images_for(model, 1, dtype=torch.float64).expand(6, -1, -1, -1)  # six times the same
    maps, index = torch.rand(6, 4, 4), torch.arange(6)

    def areas(batch: int, **options) -> torch.Tensor:
        parts = zip(images.split(batch), maps.split(batch), index.split(batch), strict=True)
        of = [
            faithfulness(model, i, [m], steps=4, random_orders=1, index=n, **options)[0]
            for i, m, n in parts
        ]
        return torch.cat([one.random_deletion for one in of])

    whole = areas(6)
    torch.testing.assert_close(areas(1), whole, rtol=1e-9, atol=0)
    torch.testing.assert_close(areas(4), whole, rtol=1e-9, atol=0)
    assert len(set(whole.tolist())) == 6 and not areas(6, seed=1).allclose(whole)


def test_wrong_options_are_refused_in_one_line():
    with pytest.raises(UserError, match="baseline is one of mean, blur, got 'black'"):
        faithfulness(OnePatch(), torch.zeros(1, 3, 8, 8), [torch.zeros(1, 2, 2)], baseline="black")
    with pytest.raises(UserError, match="at least one step"):
        faithfulness(OnePatch(), torch.zeros(1, 3, 8, 8), [torch.zeros(1, 2, 2)], steps=0)
    with pytest.raises(UserError, match="steps: expected at most 4, the number of patches, got 5"):
        faithfulness(OnePatch(), torch.zeros(1, 3, 8, 8), [torch.zeros(1, 2, 2)], steps=5)


def test_a_small_map_is_walked_patch_by_patch_if_nothing_is_said():
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    maps = [torch.rand(2, 2, 2, generator=torch.Generator().manual_seed(1))]
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    by_itself = faithfulness(model, images, maps)[0]
    asked = faithfulness(model, images, maps, steps=4)[0]
    other = faithfulness(model, images, maps, steps=2)[0]
    assert torch.equal(by_itself.deletion, asked.deletion)
    assert not torch.equal(by_itself.deletion, other.deletion)


def test_a_model_that_gives_no_numbers_has_no_faithful_map():
    images = torch.full((1, 3, 8, 8), torch.nan)
    with pytest.raises(UserError, match="faithfulness: the output of the model is NaN"):
        faithfulness(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), images, [torch.zeros(1, 2, 2)])
