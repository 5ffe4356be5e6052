"""Share weights through the Hugging Face Hub: the pair of files, and a model card made from the run.

Only ``push_to_hub`` uploads. Files from the Hub are checked as any other pair of files, and never
executed.
"""

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
from torch import nn

from mhprobe import __version__
from mhprobe.backbones.parts import narrow
from mhprobe.backbones.parts.folders import folder_of_others
from mhprobe.backbones.parts.timm_models import untold
from mhprobe.errors import UserError, first_line, quoted, refusing, short
from mhprobe.io.files import write, write_all
from mhprobe.report.runs import words
from mhprobe.report.runs.run import read_run
from mhprobe.weights.checkpoint import load_weights, read_description, save_weights
from mhprobe.weights.saving import described

PREFIX = "hf-hub:"
NAMES = ("pruned.safetensors", "model.safetensors")  # in a run's folder; on the Hub only the last
ELASTIC = ("elastic.safetensors",)  # in a run's folder, for a budget


def push_to_hub(
    path_or_model: str | Path | nn.Module,
    repo: str,
    *,
    private: bool = True,
    revision: str | None = None,
    **about: Any,
) -> str:
    """Upload weights, their JSON and a model card to ``repo`` ("owner/name"); returns the address of the commit.

    path_or_model: a run's folder, a .safetensors beside its .json, or a timm model (pruned by
        ``prune_heads`` or with gates). private: whether a new repository is private. revision: the
        branch to write to.
    about: description of a model in memory: ``backbone`` (the arguments of ``timm.create_model``,
        with ``name``), ``class_names``, ``data``, ``input`` (size, mean, std), ``made`` (a dict for
        readers of the card).
    Raises UserError if the files or the model cannot be described, or if the Hub refuses.
    """
    if not isinstance(path_or_model, str | Path | nn.Module):
        raise UserError(
            "push_to_hub: expected a run's folder, a .safetensors beside its .json, or a model, got "
            f"{quoted(path_or_model)}."
        )
    with tempfile.TemporaryDirectory(prefix="mhprobe_") as folder:
        save_for_hub(path_or_model, Path(folder), **about)
        with _hub(repo):
            api = huggingface_hub.HfApi()
            api.create_repo(repo, private=private, exist_ok=True)
            done = api.upload_folder(
                repo_id=repo, folder_path=folder, revision=revision, commit_message="mhprobe"
            )
    return str(getattr(done, "commit_url", done))


def save_for_hub(path_or_model: str | Path | nn.Module, folder: Path, **about: Any) -> Path:
    """Write the files for ``push_to_hub`` and the card, README.md, into ``folder``.

    UserError as of ``push_to_hub``.
    """
    pair, run = Path(folder) / NAMES[-1], None
    if isinstance(path_or_model, nn.Module):
        save_weights(path_or_model, pair, described(path_or_model, about, "push_to_hub"))
    else:
        weights = find_weights(path_or_model)
        if about:
            raise UserError(
                f"push_to_hub: {', '.join(about)}: leave it out, {weights} already has it."
            )
        files = {
            pair.with_suffix(end): weights.with_suffix(end) for end in (".safetensors", ".json")
        }
        if "stands_in" in load_weights(weights)[1]:  # which refuses what is no pair
            files[pair.with_name("narrow.py")] = Path(narrow.__file__)
        write_all({to: file.read_bytes() for to, file in files.items()})
        run = weights.parent
    write(pair.with_name("README.md"), card(read_description(pair), run).encode())
    return pair.parent


def find_weights(path: str | Path, names: Sequence[str] = NAMES, key: str = "weights") -> Path:
    """Find the .safetensors of ``hf-hub:owner/name[@revision]``, a run's folder or a file.

    key: setting that names it, for the UserError where there is none.
    """
    if str(path).startswith(PREFIX):
        repo, _, revision = str(path).removeprefix(PREFIX).partition("@")
        with _hub(repo), untold():
            fetch = huggingface_hub.hf_hub_download
            files = [
                fetch(repo, file, revision=revision or None) for file in ("model.json", NAMES[-1])
            ]
        return Path(files[-1])
    path = Path(path)
    unread = f"{key}: {short(str(path), 100)} cannot be read"
    with refusing(lambda error: f"{unread} ({first_line(error)}).", (OSError,)):
        folder = path.is_dir()
    if not folder:
        return path
    for name in names:
        if (path / name).is_file():
            return path / name
    if others := folder_of_others(path):
        raise UserError(f"{key}: {others}")
    raise UserError(
        f"{key}: {path} holds no {' and no '.join(names)}. Give the folder of a run, or a file."
    )


def card(description: dict[str, Any], folder: Path | None) -> str:
    """The model card, markdown, with numbers from the ``folder`` of the run that made the weights if it has them."""
    import jinja2  # only cards are made with it

    run = None
    with contextlib.suppress(UserError):  # of weights that lie alone
        run = folder and read_run(folder)
    loader, strict = jinja2.FileSystemLoader(Path(__file__).parent), jinja2.StrictUndefined
    environment = jinja2.Environment(
        loader=loader, undefined=strict, trim_blocks=True, lstrip_blocks=True
    )
    marks = " .,:+%()_/=-"  # names come from data: no markup, one line
    environment.filters["plain"] = lambda text: "".join(
        c if c.isalnum() or c in marks else " " for c in str(text)
    )
    return environment.get_template("card.md.jinja").render(
        **dict.fromkeys(("input", "kept", "gates", "stands_in")) | {"made": {}} | description,
        mlps=[
            layer for layer in description.get("kept") or () if layer.endswith("mlp")
        ],  # the others have heads
        version=__version__,
        accuracy=words.accuracy(run) if run else None,
        stages=run.rows("stages") if run else [],
        speeds=run.rows("speed") if run else [],
        command=run.facts.get("command") if run else None,
    )


def _hub(repo: str) -> contextlib.AbstractContextManager[None]:
    """Turn an error of the Hub into a UserError of one line."""
    why = "Is the name owner/name, are you logged in (hf auth login), is the network there?"
    return refusing(lambda error: f"hub: {repo}: {' '.join(first_line(error).split())}. {why}")
