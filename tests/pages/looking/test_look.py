"""The page: what it holds, what it says where something is missing, and that names are text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import mhprobe
from located import LOCATED
from mhprobe import looking as command
from mhprobe.errors import UserError
from mhprobe.pages.looking import seen
from mhprobe.pages.looking.page import look
from models import TWINS, tiny_swin, tiny_vit
from pages.looking.conftest import HOSTILE, photo


def test_the_page_fetches_nothing_and_names_are_text(model, folder):
    found = look(model, folder, show_progress=False)
    assert (
        "default-src 'none'" in found.page and "'unsafe-inline'; script-src 'sha256-" in found.page
    )
    assert HOSTILE not in found.page and "<img src=x" not in found.page
    assert len(re.findall(r'<script type="text/plain" id="attention-\d">', found.page)) == 5
    assert all(each.text.replace(" %", "\xa0%") in found.page for each in found.sentences)


def test_the_first_photograph_is_there_before_the_others_are_looked_at(model, folder):
    begun = []
    found = look(model, folder, first=lambda page: begun.append(page.page), show_progress=False)
    (first,) = begun
    assert 'id="attention-0"' in first and 'id="attention-1"' not in first
    assert 'http-equiv="refresh"' in first and 'http-equiv="refresh"' not in found.page
    assert first.count("data:image/jpeg") == 5


def test_a_network_without_attention_between_patches_gets_the_page_and_the_reason(folder):
    found = look(LOCATED["xcit"](), folder, show_progress=False)
    assert (
        "Where the heads look cannot be shown:" in found.page
        and '<script type="text/plain"' not in found.page
    )
    assert "Could not be told" in found.sentences[-1].text


def test_heads_between_tokens_are_shown_though_others_of_the_network_are_between_channels(folder):
    model = LOCATED["davit_channels_v2"]()
    page = look(model, folder, limit=2, untrained=False, show_progress=False).page
    data = json.loads(re.search(r'<script [^>]*id="data"[^>]*>(.*?)</script>', page, re.S)[1])
    layout = mhprobe.attach(model).layout
    between_tokens = [
        site.name for site in layout.sites if site.windows
    ]  # the others attend between channels
    assert [site["name"] for site in data["sites"]] == between_tokens and len(between_tokens) < len(
        layout.sites
    )
    count = sum(site.num_heads for site in layout.sites if not site.windows)
    assert (
        f"{count} of {layout.num_heads} heads are not shown: {layout.sites[1].name} "
        "(ChannelAttentionV2)" in page
    )


@pytest.mark.parametrize("name", [*TWINS, *LOCATED])
def test_every_family_is_looked_at(name, folder):
    """With its attention, or without and with the reason; but for those that take no images."""
    model = {**TWINS, **LOCATED}[name]()
    if len(getattr(model, "takes", "CHW")) < 3:
        with pytest.raises(
            UserError, match=r"a network for images, got [A-Za-z]*, which takes text"
        ):
            look(model, folder, limit=2, show_progress=False)
        return
    page = look(model, folder, limit=2, untrained=False, show_progress=False).page
    shown = len(re.findall(r'<script type="text/plain" id="attention-\d">', page))
    reason = re.search(r"cannot be shown: .*: no attention weights to look at, \w+", page)
    assert shown == (0 if reason else 2)
    assert not reason or name in LOCATED  # families of files of their own have weights to see


def test_what_was_left_out_is_said(tmp_path, model):
    for number in range(4):
        photo(number).save(tmp_path / f"{number}.png")
    (tmp_path / "4.jpg").write_bytes(b"broken")
    whole, some = (look(model, tmp_path, limit=limit, show_progress=False) for limit in (5, 2))
    for said, (page, _, notes) in {
        "Left out: 4.jpg is damaged": whole,
        "2 of the 5 photographs": some,
    }.items():
        assert (
            said in page and sum(note.startswith(said) for note in notes) == 1
        )  # the command prints notes


def test_a_photograph_in_a_format_that_is_not_read_is_named_once(tmp_path, model, caplog):
    photo(1).save(tmp_path / "a.png")
    (tmp_path / "b.heic").write_bytes(b"photograph")
    look(model, tmp_path, show_progress=False, untrained=False)
    assert [
        message.count("1 photograph is left out")
        for message in caplog.messages
        if "left out" in message
    ] == [1]


def test_what_had_no_room_is_said(monkeypatch, model, folder):
    whole = look(model, folder, show_progress=False).page
    assert "A click gives the mean over" not in whole and "there was no room for more" not in whole
    monkeypatch.setattr(seen, "ROOM", 1)
    page = look(model, folder, show_progress=False).page
    assert "A click gives the mean over a field of 8 x 8 patches" in page
    assert "Attention is here for 1 of 5 photographs: there was no room for more" in page
    assert len(re.findall(r'id="attention-\d">', page)) == 1


def test_masks_make_the_sentence_on_what_is_salient(tmp_path, folder, model):
    for name in ("a", "b", "c", "d", HOSTILE.removesuffix(".png")):
        Image.new("L", (40, 40), 255).save(tmp_path / f"{name}.png")
    found = look(model, folder, masks_in=tmp_path, show_progress=False)
    assert "no masks were given" not in found.sentences[-1].text


def test_a_cell_shows_the_page_and_repr_the_sentences(model, folder):
    found = mhprobe.look(model, folder, limit=2, show_progress=False)
    assert found._repr_html_().startswith("<iframe") and "allow-scripts" in found._repr_html_()
    assert repr(found) == "\n".join(each.text for each in found.sentences)


def test_the_command_writes_the_page_and_says_where(folder, tmp_path, capsys, monkeypatch):
    torch.manual_seed(0)
    words = [
        "vit_tiny_patch16_224",
        str(folder),
        "--weights",
        "random",
        "--size",
        "32",
        "--limit",
        "2",
        "--no-untrained",
    ]
    assert command.main([*words, "--out", str(tmp_path / "look.html")]) == 0
    said = capsys.readouterr().out
    assert said.count((tmp_path / "look.html").as_uri()) == 2 and "Could not be told" in said
    assert "It is untrained: its weights are random.\n" in said
    assert "untrained" in (tmp_path / "look.html").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["nowhere", "photos"],
        ["vit_tiny_patch16_224", "nowhere", "--weights", "random", "--size", "32"],
        ["a", "b", "--out", "no/where.html"],
    ],
)
def test_a_mistake_is_one_line_exit_2_and_nothing_is_written(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command.main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_a_page_has_a_name_that_browsers_show_as_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command.main(["a", "b", "--out", "look"]) == 2
    assert "ends in .html" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_a_folder_without_photographs_is_refused_before_weights_are_downloaded(tmp_path):
    with pytest.raises(UserError, match="has no photographs that can be read"):
        look("vit_large_patch16_224", tmp_path)


def test_help_is_one_screen(capsys):
    with pytest.raises(SystemExit) as left:
        command.main(["--help"])
    assert left.value.code == 0 and len(capsys.readouterr().out.splitlines()) <= 30


def test_a_swin_is_looked_at_window_by_window(folder):
    assert '"places":[[' in look(tiny_swin(), folder, limit=2, show_progress=False).page
    assert '"places":null' in look(tiny_vit(), folder, limit=2, show_progress=False).page


DOCS = (Path(__file__).parents[3] / "docs" / "look.md").read_text()


def test_the_docs_notebook_runs(model, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").symlink_to(folder)
    (block,) = re.findall("<!-- look -->\n```python\n(.*?)```", DOCS, re.S)
    exec(block, {"mhprobe": mhprobe, "model": model})
    assert (tmp_path / "look.html").stat().st_size > 100_000


def test_the_docs_commands_have_options_that_there_are(capsys):
    (block,) = re.findall("<!-- command -->\n```bash\n(.*?)```", DOCS, re.S)
    with pytest.raises(SystemExit):
        command.main(["--help"])
    known = capsys.readouterr().out
    assert (
        all(option in known for option in re.findall(r"--[\w-]+", block))
        and block.count("mhprobe look") == 2
    )


@pytest.mark.slow
def test_the_door_opens_it():
    done = subprocess.run(
        [sys.executable, "-m", "mhprobe", "look", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "usage: mhprobe look" in done.stdout


def test_a_model_of_half_precision_is_looked_at(folder, tmp_path):
    """The photographs stayed in float32, and the user, who gave none, was told to convert them."""
    model = tiny_vit().bfloat16()
    assert (
        look(model, folder, limit=1, untrained=False, show_progress=False)
        .save(tmp_path / "half.html")
        .is_file()
    )
