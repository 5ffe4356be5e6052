"""Heads that switch live in a real browser: the same numbers as PyTorch's, and what a reader does with them."""

from __future__ import annotations

import re

import pytest
import torch
from PIL import Image

import mhprobe
from mhprobe.backbones import attach, backbone_of, input_spec
from mhprobe.data.augment import grey, in_colours, normalise
from mhprobe.errors import UserError
from mhprobe.pages.beside import keep, keep_live
from mhprobe.pages.html import kept as module
from mhprobe.pages.html import write_report
from mhprobe.pages.live import ModelPart, stored
from mhprobe.recording.outputs import logits_of
from mhprobe.report.runs.run import read_run
from mhprobe.weights.normalisation import seen_by
from models import huggingface, make_loud, tiny_eva, tiny_swin, tiny_vit
from pages.report_html.conftest import CLASSES, make_run
from pages.report_html.test_browser import browser, pytestmark, visit

__all__ = ["browser", "pytestmark", "visit"]
SPEC = {"size": (16, 16), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}
IMAGES = 100


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run's folder with a network of 3 blocks of 4 heads, as its tables say, and the network."""
    folder = make_run(tmp_path_factory.mktemp("live") / "run")
    model = tiny_vit(depth=3, num_heads=4, num_classes=len(CLASSES))
    make_loud(model, 0.3)
    attach(model)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (IMAGES, 3, 16, 16), generator=generator, dtype=torch.uint8)
    with torch.no_grad():
        labels = model(normalise(images, **SPEC)).argmax(1)
    labels[::4] = (labels[::4] + 1) % len(CLASSES)  # right about three of four
    keep(folder, model, images, labels, CLASSES, [f"image {n}" for n in range(IMAGES)], SPEC)
    write_report(folder)
    return folder, model, images, labels


def expected(kept, gates):
    """(N, C) logits of torch."""
    _, model, images, _ = kept
    held = attach(model)
    with torch.no_grad():
        held.values.copy_(gates)
        logits = model(normalise(images, **SPEC))
        held.values.fill_(1)
    return logits


@pytest.fixture
def page(visit, kept):
    page = visit((kept[0] / "live.html").as_uri())
    page.wait_for_function(
        "() => document.getElementById('live').dataset.answered !== undefined", timeout=60_000
    )
    return page


def test_predictions_of_random_masks_are_those_of_torch(page, kept):
    code = """async (gates) => {
        const found = [];
        for (let start = 0; start < COUNT; start += CHUNK) {
            const count = Math.min(CHUNK, COUNT - start);
            const images = () => normalised(live.pixels.subarray(start * SIZE, (start + count) * SIZE), count);
            found.push(...(await forward(`chunk ${start}`, images, Float32Array.from(gates))).data);
        }
        return found;
    }"""
    generator = torch.Generator().manual_seed(1)
    moved = 0.0
    whole = expected(kept, torch.ones(12))
    for number in range(20):
        gates = (torch.rand(12, generator=generator) > 0.4).float()
        if number >= 16:
            gates = torch.rand(12, generator=generator)  # gates half open
        logits = torch.tensor(page.evaluate(code, gates.tolist())).view(IMAGES, -1)
        truth = expected(kept, gates)
        assert (logits - truth).abs().max() < 1e-4
        assert torch.equal(logits.argmax(1), truth.argmax(1))
        moved = max(moved, float((truth - whole).abs().max()))
    assert moved > 0.1  # masks do something


def test_a_choice_says_its_accuracy_with_an_interval_and_what_changes(page, kept):
    labels = kept[3]
    page.keyboard.press("Escape")
    for head in (1, 5, 6):
        page.locator(f'[data-id="{head}"]').click(modifiers=["Control"])
    page.wait_for_function("() => document.getElementById('live').dataset.answered === '1,5,6'")
    gates = torch.ones(12)
    gates[[1, 5, 6]] = 0
    taken, before = expected(kept, gates).argmax(1), expected(kept, torch.ones(12)).argmax(1)
    says = page.inner_text("#live-says")
    share = float(100 * (taken == labels).float().mean())
    assert (
        says.startswith(f"Without these 3 heads {share:.1f} % (")
        and "of all 100 test images are right" in says
    )
    assert f"with all heads {float(100 * (before == labels).float().mean()):.1f} %" in says
    changed = int((taken != before).sum())
    assert page.inner_text("#live-classes").startswith(f"{changed} image") and changed > 0
    assert page.locator("#live-changed figure").count() == min(12, changed)
    page.click("#undo")
    page.wait_for_function("() => document.getElementById('live').dataset.answered === '1,5'")
    assert "heads=1%2C5" in page.url or "heads=1,5" in page.url
    page.locator("#gate").fill("0.5")
    page.wait_for_function(
        "() => document.getElementById('live-says').textContent.startsWith('With the gate of 2 "
        "heads at 0.5')"
    )


def answered(page, heads):
    page.wait_for_function(
        f"() => document.getElementById('live').dataset.answered === '{heads}'", timeout=60_000
    )


def test_an_answer_comes_of_64_images_first_then_of_all_and_names_the_classes_that_lose_most(
    page, kept
):
    page.evaluate("""() => {
        globalThis.says = [];
        const watch = new MutationObserver(() => says.push(document.getElementById("live-says").textContent));
        watch.observe(document.getElementById("live-says"), { childList: true });
    }""")
    page.get_by_role("button", name="Block 2", exact=True).click()
    answered(page, "8,9,10,11")
    first, last = page.evaluate("says")
    gates = torch.ones(12)
    gates[8:] = 0
    labels = kept[3]
    right = expected(kept, gates).argmax(1) == labels
    assert (
        f"{100 * float(right[:64].float().mean()):.1f} % (" in first
        and "of the first 64 test images" in first
    )
    assert (
        f"{100 * float(right.float().mean()):.1f} % (" in last and "of all 100 test images" in last
    )
    lost = (expected(kept, torch.ones(12)).argmax(1) == labels).long() - right.long()
    by_class = [int(lost[labels == label].sum()) for label in range(len(CLASSES))]
    worst = max(range(len(CLASSES)), key=by_class.__getitem__)
    of = f"({by_class[worst]} of {int((labels == worst).sum())})"
    assert by_class[worst] > 0 and f"Most is lost by {CLASSES[worst]} {of}" in page.inner_text(
        "#live-classes"
    )


def test_steps_of_an_order_the_lowest_heads_and_ones_own_order_answer(page, kept):
    page.select_option("#line", "lucky")
    page.focus("#step")
    page.keyboard.press("ArrowRight")
    answered(page, "5")
    page.keyboard.press("ArrowRight")
    answered(page, "5,6")
    for head, heads in ((0, "0,5,6"), (1, "0,1,5,6")):  # farther than any curve of the run
        page.locator(f'[data-id="{head}"]').click(modifiers=["Control"])
        answered(page, heads)
    mine = page.evaluate("own.map(({ heads_masked, accuracy }) => [heads_masked, accuracy])")
    labels = kept[3]
    for (count, accuracy), heads in zip(
        mine, ([], [5], [5, 6], [0, 5, 6], [0, 1, 5, 6]), strict=True
    ):
        gates = torch.ones(12)
        gates[heads] = 0
        right = expected(kept, gates).argmax(1) == labels
        assert count == len(heads) and accuracy == pytest.approx(float(right.float().mean()))
    assert "your own order" in page.inner_text("#curve-legend")
    dots = page.locator('#curve-chart g[fill="var(--ring)"] circle')
    chart = page.locator("#curve-chart svg").bounding_box()
    assert dots.count() == 5 and dots.last.bounding_box()["x"] < chart["x"] + chart["width"]
    page.select_option("#colour", label="gate importance")
    page.fill("#many", "2")
    page.click("#lowest")
    lowest = page.evaluate("[...atlas.chosen].sort((a, b) => a - b).join(',')")
    answered(page, lowest)
    assert lowest.count(",") == 1 and page.evaluate("own.length") == 1  # another order begins
    assert f"prune.heads=[{lowest}]" in page.inner_text("#chosen-command")


def test_a_digit_is_drawn_and_a_file_is_dropped(visit, kept):
    model = kept[1]
    grey = kept[2][:20].float().mean(1, keepdim=True).round().byte().expand(-1, 3, -1, -1)
    page = visit(mhprobe.live(model, grey, kept[3][:20]).save(kept[0] / "grey.html").as_uri())
    answered(page, "")
    page.locator("#pad").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + 30, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 90, box["y"] + 100, steps=5)
    page.mouse.up()
    page.wait_for_function(
        "() => document.getElementById('own-says').textContent.includes('with the choice')"
    )
    drawn = torch.tensor(page.evaluate("[...live.own]"), dtype=torch.uint8).view(1, 3, 16, 16)
    assert (
        drawn[0, :, 8, 8].min() > 100 and drawn[0, :, 2, 14].max() == 0
    )  # on the stroke, and beside it
    spec = input_spec(model)
    with torch.no_grad():
        shares = model(normalise(drawn, **spec)).softmax(1)
    assert (
        f"with all heads: {int(shares.argmax())} ({100 * float(shares.max()):.1f} %)"
        in page.inner_text("#own-says")
    )
    page.click("#wipe")
    assert page.inner_text("#own-says") == ""
    page.evaluate("""async () => {
        const square = new OffscreenCanvas(16, 16);
        square.getContext("2d").fillRect(0, 0, 16, 16);
        const dropped = new DataTransfer();
        dropped.items.add(new File([await square.convertToBlob()], "square.png", { type: "image/png" }));
        dispatchEvent(new DragEvent("drop", { dataTransfer: dropped, cancelable: true }));
    }""")
    page.wait_for_function(
        "() => document.getElementById('own-says').textContent.includes('with the choice')"
    )
    assert page.evaluate("Math.max(...live.own)") == 0


def test_rows_columns_and_the_link_choose(visit, page, kept):
    for number in range(4):  # a column's button stands above its heads
        column, cell = (
            page.get_by_role("button", name=f"Heads number {number}"),
            page.locator(f'[data-id="{number}"]'),
        )
        assert abs(column.bounding_box()["x"] - cell.bounding_box()["x"]) < 2
    page.get_by_role("button", name="Block 1", exact=True).click()
    page.wait_for_function("() => document.getElementById('live').dataset.answered === '4,5,6,7'")
    page.get_by_role("button", name="Heads number 0").click()
    page.wait_for_function(
        "() => document.getElementById('live').dataset.answered === '0,4,5,6,7,8'"
    )
    again = visit(page.url)
    again.wait_for_function(
        "() => document.getElementById('live').dataset.answered === '0,4,5,6,7,8'", timeout=60_000
    )
    assert again.inner_text("#live-says") == page.inner_text("#live-says")
    assert again.locator("#curve-chart svg").count() == 1


def test_an_image_of_ones_own_is_taken_for_something_with_and_without_the_heads(
    page, kept, tmp_path
):
    images = kept[2]
    Image.fromarray(images[3].permute(1, 2, 0).numpy()).save(tmp_path / "own.png")
    page.set_input_files("#own-file", tmp_path / "own.png")
    page.wait_for_function(
        "() => document.getElementById('own-says').textContent.includes('with the choice')"
    )
    shares = expected(kept, torch.ones(12))[3].softmax(0)
    assert f"({100 * float(shares.max()):.1f} %)" in page.inner_text("#own-says")
    assert page.locator("#own-maps figure").count() == 3
    (tmp_path / "no.png").write_bytes(b"no picture")
    page.set_input_files("#own-file", tmp_path / "no.png")
    page.wait_for_function(
        "() => document.getElementById('own-says').textContent.includes('no.png is no picture')"
    )


def test_without_webassembly_the_rest_of_the_page_works(browser, kept):
    context = browser.new_context()
    context.add_init_script("delete globalThis.WebAssembly")
    page = context.new_page()
    page.goto((kept[0] / "live.html").as_uri())
    page.wait_for_function(
        "() => document.getElementById('live-says').textContent.includes('no WebAssembly')"
    )
    assert page.locator('#grid [role="gridcell"]').count() == 12
    context.close()


def test_the_policy_is_opened_for_webassembly_alone_and_in_the_live_page_alone(kept):
    policy = {
        name: re.search(r'script-src ([^;"]*)', (kept[0] / name).read_text())[1]
        for name in ("live.html", "report.html")
    }
    assert "'wasm-unsafe-eval'" in policy["live.html"] and "wasm" not in policy["report.html"]
    for words in policy.values():
        assert all(
            word.startswith("'sha256-") or word == "'wasm-unsafe-eval'" for word in words.split()
        )
    assert 'href="live.html"' in (kept[0] / "report.html").read_text()


def test_a_notebook_makes_the_page_of_its_own_network(visit, kept):
    _, model, images, labels = kept
    found = mhprobe.live(model, images[:20], labels[:20])
    page = visit(found.save(kept[0] / "own.html").as_uri())
    page.wait_for_function(
        "() => document.getElementById('live').dataset.answered === ''", timeout=60_000
    )
    assert "of all 20 test images" in page.inner_text("#live-says")
    with pytest.raises(UserError, match="uint8"):
        mhprobe.live(model, images.float(), labels)
    with pytest.raises(UserError, match=r"expected \(N, 3, .* got \(.*, 1, "):
        mhprobe.live(model, images[:, :1], labels)
    with pytest.raises(UserError, match=r"expected \(N, 13, .* got \(.*, 3, "):
        mhprobe.live(tiny_vit(in_chans=13), images, labels)


def of_channels(channels):
    model = tiny_vit(in_chans=channels)
    make_loud(model, 0.3)
    return model


def pixel(page, place):
    """Red, green and blue of a canvas's first pixel."""
    code = "canvas => [...canvas.getContext('2d').getImageData(0, 0, 1, 1).data].slice(0, 3)"
    return page.eval_on_selector(place, code)


@pytest.mark.parametrize(
    ("channels", "given", "shown"),
    [(1, 3, ""), (1, 1, ""), (2, 2, "mean of 2 channels, grey"), (4, 4, "channels 1 to 3 of 4")],
)
def test_networks_of_other_channels_switch_and_say_what_their_pictures_show(
    visit, tmp_path, channels, given, shown
):
    model = of_channels(channels)
    gates, spec = attach(model), seen_by(model, None, None, "live")[0]
    images = torch.randint(0, 256, (40, given, *spec["size"]), dtype=torch.uint8)
    labels = torch.zeros(40).long()
    page = visit(mhprobe.live(model, images, labels).save(tmp_path / "own.html").as_uri())
    answered(page, "")
    says = page.inner_text("#live-agrees")
    assert f"Pictures show {shown}." in says if shown else "Pictures" not in says
    page.get_by_role("button", name="Heads number 1").first.click()
    closed = [head for head, (_, index, _) in enumerate(gates.layout) if index == 1]
    answered(page, ",".join(map(str, closed)))
    seen = torch.tensor(page.evaluate("[...live.kept.get('chunk 0').streams.at(-1).data]"))
    with torch.no_grad(), gates.masked(gates.layout.mask(closed)):
        expected = model(normalise(images, **spec))
    assert (seen.view(40, -1) - expected).abs().max() < 1e-4
    network = grey(images) if given > channels else images
    taken = expected.argmax(1).tolist()
    changed = page.evaluate(f"live.before.findIndex((taken, image) => taken !== {taken}[image])")
    corner = in_colours(network[changed])[0][:, 0, 0]
    assert pixel(page, "#live-changed canvas") == corner.tolist()


def test_an_image_of_ones_own_is_grey_for_one_channel_and_not_asked_for_by_more_than_three(
    visit, tmp_path
):
    own = torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8)
    Image.fromarray(own[0].permute(1, 2, 0).numpy()).save(tmp_path / "own.png")
    for channels in (1, 4):
        model = of_channels(channels)
        images = torch.randint(0, 256, (4, channels, 16, 16), dtype=torch.uint8)
        found = mhprobe.live(model, images, torch.zeros(4).long())
        page = visit(found.save(tmp_path / f"{channels}.html").as_uri())
        answered(page, "")
        if channels == 4:
            assert "takes images of 4 channels" in page.inner_text("#own-says")
            assert not page.locator("#own-file").is_visible()
            continue
        page.set_input_files("#own-file", tmp_path / "own.png")
        page.locator("#own-maps canvas").first.wait_for()
        assert page.evaluate("[...live.own]") == grey(own).flatten().tolist()


def hugging_face():
    return huggingface("ViTForImageClassification", num_labels=5)


@pytest.mark.parametrize("make", [tiny_swin, tiny_eva, hugging_face])
def test_other_families_switch_with_the_logits_of_torch(visit, make, tmp_path):
    model = make()
    make_loud(model, 0.3)
    gates = attach(model)
    spec = input_spec(backbone_of(model))
    images = torch.randint(0, 256, (20, 3, *spec["size"]), dtype=torch.uint8)
    page = visit(
        mhprobe.live(model, images, torch.zeros(20).long()).save(tmp_path / "own.html").as_uri()
    )
    answered(page, "")
    page.get_by_role("button", name="Heads number 1").first.click()
    closed = [head for head, (_, index, _) in enumerate(gates.layout) if index == 1]
    answered(page, ",".join(map(str, closed)))
    seen = torch.tensor(page.evaluate("[...live.kept.get('chunk 0').streams.at(-1).data]")).view(
        20, -1
    )
    with torch.no_grad():
        whole = logits_of(model(normalise(images, **spec)))
        with gates.masked(gates.layout.mask(closed)):
            expected = logits_of(model(normalise(images, **spec)))
    assert (seen - expected).abs().max() < 1e-4 and (whole - expected).abs().max() > 1e-3
    Image.fromarray(images[3].permute(1, 2, 0).numpy()).save(tmp_path / "own.png")
    page.set_input_files("#own-file", tmp_path / "own.png")
    page.wait_for_function(
        "() => document.getElementById('own-says').textContent.includes('with the choice')"
    )
    share = 100 * float(whole[3].softmax(0).max())
    assert f"with all heads: {int(whole[3].argmax())} ({share:.1f} %)" in page.inner_text(
        "#own-says"
    )


def test_a_cell_shows_live_heads_as_it_shows_a_look(visit, kept, tmp_path):
    """A notebook puts ``_repr_html_`` into its page: there the frame answers, with an origin of its own.

    It does so in a page of another encoding as well: there the scripts' hashes were once not those
    that it allows.
    """
    _, model, images, labels = kept
    cell = mhprobe.live(model, images[:20], labels[:20])._repr_html_()
    (tmp_path / "notebook.html").write_text(
        f'<meta charset="windows-1252">{cell}', encoding="utf-8"
    )
    cell = visit((tmp_path / "notebook.html").as_uri()).frame_locator("iframe")
    cell.locator("#live[data-answered='']").wait_for(timeout=60_000)
    assert "of all 20 test images" in cell.locator("#live-says").inner_text()
    assert cell.locator("h1").inner_text() == f"{type(model).__name__}/live"
    cell.locator("#grid .cell").first.click(modifiers=["Control"])
    cell.locator("#live[data-answered='0']").wait_for(timeout=60_000)


def smaller(kept, tmp_path, monkeypatch, most):
    """The same run, where a page holds a network of ``most`` bytes."""
    for module_name in ("mhprobe.pages.beside", "mhprobe.pages.html.kept"):
        monkeypatch.setattr(f"{module_name}.MOST", most)
    folder = make_run(tmp_path / "run")
    _, model, images, labels = kept
    keep(folder, model, images, labels, CLASSES, [f"image {n}" for n in range(IMAGES)], SPEC)
    write_report(folder)
    return folder


def size_of(folder, kind):
    found, _ = read_run(folder).files.tensors(module.NETWORK)
    whole = [
        ModelPart(each.numpy().tobytes(), 0, 0, [])
        for name, each in found.items()
        if name.startswith("piece/")
    ]
    return sum(len(stored(piece, kind).onnx) for piece in whole)


def test_a_network_that_has_room_as_int8_alone_says_how_far_its_accuracy_lies(
    visit, kept, tmp_path, monkeypatch
):
    folder = smaller(kept, tmp_path, monkeypatch, size_of(kept[0], "int8"))
    page = visit((folder / "live.html").as_uri())
    page.wait_for_function(
        "() => document.getElementById('live').dataset.answered !== undefined", timeout=60_000
    )
    right = int((expected(kept, torch.ones(12)).argmax(1) == kept[3]).sum())
    says = page.inner_text("#live-agrees")
    assert (
        "weights kept as int8: " in says and f"with the run's own weights {right}; logits" in says
    )
    here = page.evaluate("rightOf(live.before)")
    assert f"{here} of 100 images are right" in says and abs(here - right) <= 5
    apart = page.evaluate(
        "predicted(gatesOf(new Set()), () => {}).then(({ taken }) => taken.length)"
    )
    assert apart == IMAGES


def test_a_network_that_is_too_large_for_a_page_is_chosen_from_the_file_beside_it(
    visit, kept, tmp_path, monkeypatch
):
    folder = smaller(kept, tmp_path, monkeypatch, 1000)
    assert "live-piece-0" not in (folder / "live.html").read_text()
    page = visit((folder / "live.html").as_uri())
    page.wait_for_function(
        "() => document.getElementById('live-says').textContent.includes('live.safetensors')"
    )
    page.set_input_files("#live-file", folder / "report.html")
    page.wait_for_function(
        "() => document.getElementById('live-says').textContent.includes('has no network in it')"
    )
    page.set_input_files("#live-file", [])  # taken back
    page.set_input_files("#live-file", folder / "live.safetensors")
    page.wait_for_function(
        "() => document.getElementById('live').dataset.answered !== undefined", timeout=60_000
    )
    right = int((expected(kept, torch.ones(12)).argmax(1) == kept[3]).sum())
    assert (
        f"kept as float16: {right} of 100 images are right, with the run's own weights {right}"
        in page.inner_text("#live-agrees")
    )
    assert not page.locator("#live-file").is_visible()


def test_what_cannot_be_live_is_a_line_and_no_page(tmp_path, monkeypatch):
    model = tiny_vit(num_classes=0)
    attach(model)
    images = torch.zeros(3, 3, 16, 16, dtype=torch.uint8)
    labels = torch.zeros(3, dtype=torch.long)
    with pytest.raises(UserError, match="logits of the classes"):
        keep(tmp_path, model, images, labels, CLASSES, [], SPEC)
    monkeypatch.setattr("mhprobe.pages.beside.MOST", 1000)
    whole = tiny_vit(num_classes=len(CLASSES))
    attach(whole)
    with pytest.raises(UserError, match="MB as int8, expected at most 0"):
        mhprobe.live(whole, images, labels)  # a cell has no file beside it
    assert "NoneType" in keep_live(tmp_path, model, None)  # whatever it is, the run goes on
    assert list(tmp_path.iterdir()) == []


def test_the_runtime_is_the_published_one_with_its_exports_as_a_global():
    text = module.runtime()
    assert "ONNX Runtime Web v1.30.0" in text and "export{" not in text and "</script" not in text
    assert re.search(r"globalThis\.ort=\{[^}]*InferenceSession:\w+[^}]*env:\w+", text)
