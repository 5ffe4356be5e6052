from __future__ import annotations

import pytest
import torch

import mhprobe
from attention import batch_of, even, run, stream_of, swin_layout, vit_layout
from mhprobe.errors import UserError
from mhprobe.measures.no_op import NoOp
from models import images_for, labels_for, tiny_registers


def no_op(layout, attn, slopes, loud=None, **options):
    batch = batch_of(*attn, attn_grad=tuple(slopes), stream=stream_of(layout, len(attn[0]), loud))
    return run(NoOp(layout, **options), batch)


def test_slopes_are_averaged_by_absolute_value_over_keys_of_each_kind():
    layout = vit_layout(grid=(2, 2))
    slope = torch.full((2, 1, 1, 5, 5), -0.5, dtype=torch.float64)
    slope[0] *= -1  # images must not cancel
    slope[..., 0] *= 0.1  # the class token matters a tenth as much
    got = no_op(layout, even(layout), [slope])
    assert got["value"].item() == pytest.approx(0.1)
    assert got["gradient_special"].item() == pytest.approx(0.05) and got[
        "gradient_other"
    ].item() == pytest.approx(0.5)
    assert got["gradient_cls"].item() == pytest.approx(0.05)
    assert got["gradient_border"].item() == pytest.approx(0.5)  # on a 2 x 2 grid every patch
    assert got["attention"].item() == pytest.approx(0.2) and got[
        "uniform_attention"
    ].item() == pytest.approx(0.2)
    assert (
        "uniform" not in got
    )  # figures would take it for a level of value, which is a ratio of slopes
    assert got["null"].item() == 1
    assert got["gradient_registers"].isnan().all()


def test_ordinary_patches_do_not_outvote_the_class_token():
    """A class token that does not matter, and a loud patch that does: the no-op is the former."""
    layout = vit_layout(grid=(4, 4))
    slope = torch.ones(2, 1, 1, 17, 17, dtype=torch.float64)
    slope[..., 0], slope[..., 5] = 0.1, 4.0
    assert no_op(layout, even(layout, 2), [slope], loud={5: 50.0})["value"].item() < 0.1
    pooled = no_op(
        layout, even(layout, 2), [slope], loud={5: 50.0}, special=["cls", "registers", "high_norm"]
    )
    assert pooled["value"].item() > 1


def test_special_kinds_can_be_chosen():
    layout = vit_layout(grid=(3, 3))
    slope = torch.ones(1, 1, 1, 10, 10, dtype=torch.float64)
    slope[..., torch.arange(10), torch.arange(10)] = 3.0
    assert no_op(layout, even(layout, 1), [slope], special=["self"])[
        "value"
    ].item() == pytest.approx(3)
    assert no_op(layout, even(layout, 1), [slope])["value"].item() != pytest.approx(3)


def test_tokens_of_high_norm_are_special_where_there_is_no_class_token():
    layout = swin_layout()
    slopes = [torch.ones_like(attn) for attn in even(layout)]
    for number, site in enumerate(layout.sites):
        loud = (site.places() == 9).double()
        slopes[number] = slopes[number] + 3 * loud[None, :, None, None, :]
    got = no_op(layout, even(layout), slopes, loud={9: 50.0})
    assert got["value"].tolist() == pytest.approx([4, 4])
    quiet = no_op(layout, even(layout), slopes)
    assert quiet["value"].isnan().all() and quiet["attention"].tolist() == [0, 0]


def test_slopes_of_a_model_say_how_its_loss_moves_with_attention():
    """A small step of a class-token weight changes the loss by slope times step."""
    model = tiny_registers().double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    images, labels = images_for(model, 1, dtype=torch.float64), labels_for(1)
    layout = mhprobe.attach(model).layout
    batch = mhprobe.record(model, images, labels, {"attn", "attn_grad", "stream"})
    slope = batch.attn_grad[0][0, 0, 1, 4, 0]
    losses = []
    for step in (-1e-5, 1e-5):

        def nudge(_module, args, step=step):
            attn = args[0].clone()
            attn[0, 1, 4, 0] += step
            return (attn,)

        attention = model.get_submodule(layout.sites[0].name)
        attention.fused_attn = False
        handle = attention.attn_drop.register_forward_pre_hook(nudge)
        with torch.no_grad():
            losses.append(torch.nn.functional.cross_entropy(model(images), labels))
        handle.remove()
    torch.testing.assert_close((losses[1] - losses[0]) / 2e-5, slope, rtol=1e-5, atol=1e-9)
    assert run(NoOp(layout), batch)["gradient_cls"][1] > 0


def test_wrong_options_and_missing_slopes_are_refused_in_one_line():
    with pytest.raises(
        UserError, match=r"no_op: special lists some of cls, registers, self.*got \['sep'\]"
    ):
        NoOp(vit_layout(), special=["sep"])
    with pytest.raises(UserError, match="no_op: special lists"):
        NoOp(vit_layout(), special=[])
    with pytest.raises(
        UserError, match="no_op: threshold is a number of standard deviations above 0, got -1"
    ):
        NoOp(vit_layout(), threshold=-1)
    with pytest.raises(UserError, match="no slopes along attention"):
        NoOp(vit_layout()).update(batch_of(*even(vit_layout())))
