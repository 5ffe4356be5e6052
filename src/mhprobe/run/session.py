"""Puts together what Hydra composed: data, model, measures, curves, report and trainer. The tasks are thin on top."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

from mhprobe.errors import UserError

# Noise that a user can do nothing about, each with its reason.
QUIET = (
    ("LeafSpec", "torch moved a private class that Lightning still imports"),
    ("does not have many workers", "a memory-mapped gather is faster than worker processes for small images"),
    ("sync_dist=True", "the logged numbers are reduced already, exactly, by torchmetrics"),
    ("Checkpoint directory", "resuming into the folder of a run is meant"),
    ("The dirpath has changed", "the best checkpoint is brought along, and last.ckpt is only the newest"),
    ("callbacks used to create the checkpoint", "a resumed run may save at other steps than the one before"),
    ("tensorboardX", "the csv logger is chosen"),
    ("smaller than the logging interval", "few images are a choice, and every epoch is logged"),
    ("lr_scheduler.step", "mixed precision may skip its first step"),
)


class Session:
    """One run: built from a checked configuration, writing into ``folder``.

    measures, curves: whether the test probes heads and draws masking curves.
    gates_kept: (A,) bool, the heads that the loaded weights' learned gates keep, as their run decided; None without.
    """

    def __init__(
        self, task: str, cfg: dict[str, Any], folder: Path, measures: bool = False, curves: bool = False
    ) -> None:
        for message, _ in QUIET:
            warnings.filterwarnings("ignore", message=f".*{message}")
        import lightning as L

        for library in ("lightning.pytorch", "lightning.fabric", "fontTools", "matplotlib"):
            logging.getLogger(library).setLevel(logging.WARNING)  # devices found, tips, font subsets
        from hydra.utils import instantiate

        from mhprobe.classifier import GatedClassifier
        from mhprobe.data.base import InputSpec
        from mhprobe.io.head_tables import read_kept
        from mhprobe.report.report import Report
        from mhprobe.weights.checkpoint import DESCRIBES, gates_kept, load_weights
        from mhprobe.weights.description import portable

        L.seed_everything(cfg["seed"], workers=True, verbose=False)
        self.task, self.cfg, self.folder = task, cfg, folder
        self.checkpoints = folder / "checkpoints"
        self.data = _construct(instantiate, cfg["data"], "data")
        self.data.prepare_data()
        self.data.setup()

        self.gates_kept: Any = None
        if cfg["weights"]:
            backbone, loaded = load_weights(cfg["weights"])
            description = {key: loaded[key] for key in DESCRIBES if key in loaded}
            self.gates_kept = gates_kept(loaded)
            if description["class_names"] != list(self.data.class_names):
                raise UserError(
                    f"weights: {cfg['weights']} knows the classes {', '.join(description['class_names'][:3])} ..., the "
                    f"data has {', '.join(self.data.class_names[:3])} ... It was trained on data={description['data']}."
                )
        else:
            backbone = _construct(instantiate, {**cfg["backbone"], "num_classes": self.data.num_classes}, "backbone")
            description = {
                "backbone": portable(cfg["backbone"]),
                "class_names": list(self.data.class_names),
                "data": self.data.source.name,
            }
        from mhprobe.backbones import input_spec

        spec = input_spec(backbone)
        self.data.spec = InputSpec(**spec)
        description = {**description, "input": {key: list(value) for key, value in spec.items()}}
        gates = cfg["gates"]
        self.classifier = GatedClassifier(
            backbone,
            description,
            make_gates=_explained(_construct(instantiate, gates["relaxation"], "gates.relaxation"), "gates.relaxation"),
            penalty=_construct(instantiate, gates["penalty"], "gates.penalty") if gates["penalty"] else None,
            gate_lr=gates["lr"],
            frozen=gates["frozen"],
            **cfg["optim"],
        )
        if gates["mask"]:
            self.classifier.gates.close(~read_kept(gates["mask"], self.classifier.gates.layout))
        if cfg["compile"]:
            backbone.compile()

        self.probe: Any = None
        self.loggers = self._loggers(instantiate)
        self.report = Report(folder, self.classifier.gates.layout, self.loggers)
        self.trainer = self._trainer(self._callbacks(instantiate, measures, curves))
        for logger in self.loggers:
            logger.log_hyperparams({"task": task, **cfg})

    def fit(self) -> None:
        """Train, keeping ``best.ckpt`` and ``last.ckpt``."""
        self.trainer.fit(self.classifier, datamodule=self.data, ckpt_path=self._resume_from())

    def make(self, part: dict[str, Any], where: str) -> Any:
        """What a part of the configuration with a ``_target_`` describes. where: its key, for the error's line."""
        from hydra.utils import instantiate

        return _construct(instantiate, part, where)

    def retrain(self, backbone: Any, description: dict[str, Any], epochs: int, checkpoints: Path) -> Any:
        """Train a network that stands in for the loaded one, e.g. a pruned one; returns it, best on validation."""
        from hydra.utils import instantiate

        from mhprobe.classifier import GatedClassifier
        from mhprobe.weights.checkpoint import load_checkpoint

        self.cfg = {**self.cfg, "trainer": {**self.cfg["trainer"], "max_epochs": epochs}}
        self.checkpoints = checkpoints
        self.classifier = GatedClassifier(backbone, description, **self.cfg["optim"])
        self.trainer = self._trainer(self._callbacks(instantiate, measures=False, curves=False))
        self.trainer.fit(self.classifier, datamodule=self.data)
        self.classifier.load_state_dict(load_checkpoint(checkpoints / "best.ckpt")["state_dict"])
        return self.classifier.backbone

    def test(self, best: bool = False) -> None:
        """Test, probe and mask; with the best checkpoint of ``fit`` or the weights as they are.

        Where open heads have a price, the best on validation is the first, with all heads open: the last is meant.
        """
        if best and self.classifier.penalty is None:
            from mhprobe.weights.checkpoint import load_checkpoint

            self.classifier.load_state_dict(load_checkpoint(self.checkpoints / "best.ckpt")["state_dict"])
        self.trainer.test(self.classifier, datamodule=self.data, verbose=False)
        if self.trainer.is_global_zero:
            self.report.add_metrics({**self.classifier.results, "test/images": self.data.sizes["test"]})

    def export(self) -> None:
        """Write the weights as plain timm keys: ``model.safetensors`` and the JSON that rebuilds the model."""
        from mhprobe.weights.checkpoint import save_weights

        if self.trainer.is_global_zero:
            made = {
                "by": f"mhprobe.{self.task}",
                "name": self.cfg["name"],
                "data": self.data.fingerprint,
                "epochs": self.trainer.current_epoch,
                "seed": self.cfg["seed"],
                **self.classifier.results,
            }
            description = {**self.classifier.description, "made": made}
            gates, rule = self.classifier.gates, self.cfg["gates"]
            if any(gate.requires_grad for gate in gates.parameters()):
                description["gates_kept"] = gates.kept(rule["keep"], rule["threshold"]).long().tolist()
            save_weights(self.classifier.backbone, self.folder / "model.safetensors", description)

    def close(self) -> None:
        """Finish the report and say where it is; then complain about measures that could not be computed."""
        if not self.trainer.is_global_zero:
            return
        self.report.close()
        metrics = self.report.metrics
        print(f"test accuracy {100 * metrics['test/accuracy']:.2f} % of {metrics['test/images']} images")
        print(f"tables and figures: {self.folder}")
        if self.probe is not None and self.probe.refused:
            raise self.probe.refused[0]

    def _trainer(self, callbacks: list[Any]) -> Any:
        import lightning as L
        from lightning.fabric.utilities.exceptions import MisconfigurationException as FabricMisconfiguration
        from lightning.pytorch.utilities.exceptions import MisconfigurationException

        from mhprobe.callbacks.checkpoints import AtomicCheckpointIO

        settings = dict(self.cfg["trainer"])
        if settings["precision"] == "auto":
            settings["precision"] = _best_precision(settings["accelerator"])
        try:
            return L.Trainer(
                **settings,
                callbacks=callbacks,
                logger=self.loggers,
                plugins=[AtomicCheckpointIO()],
                default_root_dir=self.folder,
                use_distributed_sampler=False,  # ours pads with flagged images
                num_sanity_val_steps=0,
                enable_model_summary=False,
            )
        except (MisconfigurationException, FabricMisconfiguration, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"trainer: {' '.join(str(error).split())}") from error

    def _callbacks(self, instantiate: Any, measures: bool, curves: bool) -> list[Any]:
        from lightning.pytorch.callbacks import LearningRateMonitor, RichProgressBar

        from mhprobe.callbacks.checkpoints import SameShape, SaveOnTerminate, best_and_last
        from mhprobe.callbacks.curve import MaskingCurve
        from mhprobe.callbacks.gates import GateHistory
        from mhprobe.callbacks.probe import Probe
        from mhprobe.callbacks.seed import SeedEachStep
        from mhprobe.callbacks.settling import Settling
        from mhprobe.masking.curve import CurveSpec

        cfg = self.cfg
        callbacks = [
            RichProgressBar(leave=False),
            LearningRateMonitor(logging_interval="step"),
            SeedEachStep(cfg["seed"]),
            SameShape(cfg["data"].get("batch_size", 0)),
            *best_and_last(self.checkpoints, cfg["checkpoint"]["every_n_steps"]),
            SaveOnTerminate(self.checkpoints),
        ]
        if self.task == "train" and any(gate.requires_grad for gate in self.classifier.gates.parameters()):
            callbacks.append(GateHistory(self.report, cfg["gates"]["keep"], cfg["gates"]["threshold"]))
        if measures and cfg["measure"]:
            layout = self.classifier.gates.layout
            built, refused = {}, []
            for name, part in cfg["measure"].items():
                try:  # made here, so that a wrong option is found before the training, not after it
                    built[name] = _measure(instantiate, part, name, layout)
                except UserError as error:
                    if self.task == "train":
                        raise
                    refused.append(error)  # said at the end: the others are computed
            settings = dict(cfg["probe"])
            settings["control"] = self._random_twin() if settings["control"] == "random_init" else None
            settings["also_on"] = self._second_data(instantiate, settings["also_on"])
            self.probe = Probe(built, self.report, **settings)
            self.probe.refused += refused
            # before whoever saves a checkpoint after a step: the history's point of that step is to be in it
            callbacks.insert(0, self.probe)
        if self.task == "train" and cfg["settling"]["every_n_epochs"]:
            measure = _construct(instantiate, cfg["settling"]["measure"], "settling.measure")
            settling = Settling(self.report, **{**cfg["settling"], "measure": measure})
            callbacks.insert(0, settling)  # before whoever saves a checkpoint: the epoch is to be in it
        if curves and cfg["masking"]["curves"]:
            specs = []
            for name, part in cfg["masking"]["curves"].items():
                order = _construct(instantiate, part.get("order"), f"masking.curves.{name}.order")
                try:
                    specs.append(CurveSpec(name=name, **{**part, "order": order}))
                except TypeError as error:
                    raise UserError(f"masking.curves.{name}: {error}") from error
                specs[-1].check(self.classifier.gates.layout)
            options = {key: cfg["masking"][key] for key in ("select_on", "steps", "step")}
            if cfg["masking"]["join"]:
                options["join"] = _construct(instantiate, cfg["masking"]["join"], "masking.join")
            callbacks.append(MaskingCurve(specs, self.report, Path(cfg["cache_dir"]) / "orders", **options))
        return callbacks

    def _random_twin(self) -> Any:
        """The same architecture with gates, freshly initialised from the run's seed."""
        import torch

        from mhprobe.backbones import attach, build

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.cfg["seed"] + 1)  # not the weights this run itself may have started from
            settings = {**self.classifier.description["backbone"], "pretrained": False}
            twin = build(**settings, num_classes=self.data.num_classes)
        if attach(twin).layout != self.classifier.gates.layout:
            raise UserError(
                "probe.control: expected weights whose heads are those of their architecture, got pruned ones, which "
                "have no random twin. Leave probe.control=null, or probe the weights before the removal."
            )
        return twin.eval()

    def _second_data(self, instantiate: Any, part: dict[str, Any] | None) -> Any:
        """The data set of ``probe.also_on``, prepared like the first."""
        if part is None:
            return None
        data = _construct(instantiate, part, "probe.also_on")
        data.prepare_data()
        data.setup()
        if data.class_names != self.data.class_names:
            raise UserError(
                f"probe.also_on: {data.source.name} has the classes {', '.join(data.class_names[:3])} ..., expected "
                f"those of {self.data.source.name}: {', '.join(self.data.class_names[:3])} ..."
            )
        if data.source.name == self.data.source.name:
            raise UserError(f"probe.also_on: expected another data set than data, got {data.source.name} twice.")
        data.spec = self.data.spec
        return data

    def _loggers(self, instantiate: Any) -> list[Any]:
        from lightning.pytorch.utilities import rank_zero_only

        rank_zero_only.rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))  # type: ignore[attr-defined]
        return [
            _construct(instantiate, part, f"logger.{name}", folder=self.folder)
            for name, part in self.cfg["logger"].items()
        ]

    def _resume_from(self) -> str | None:
        path = self.cfg["ckpt_path"]
        if path is None:
            return None
        if "://" in path:
            raise UserError(f"ckpt_path: {path} is remote, where pickled code could hide; download it first.")
        if path != "last":
            if not Path(path).is_file():
                raise UserError(f"ckpt_path: no file {path}; ckpt_path=last takes the newest run's last checkpoint.")
            return path
        runs = Path(self.cfg["out"]) / self.cfg["name"]
        found = sorted(
            {*runs.glob("**/checkpoints/last.ckpt"), *self.checkpoints.glob("last.ckpt")}, key=os.path.getmtime
        )
        if not found:
            raise UserError(f"ckpt_path=last: no last.ckpt under {runs}; leave ckpt_path out to start anew.")
        print(f"resuming from {found[-1]}")
        return str(found[-1])


def _construct(instantiate: Any, part: dict[str, Any], where: str, **extra: Any) -> Any:
    """hydra's instantiate, with a wrong key or value named in one line."""
    from hydra.errors import InstantiationException

    try:
        return instantiate(part, _convert_="all", **extra)  # plain lists: timm does not take OmegaConf's
    except InstantiationException as error:
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, UserError):
            cause = cause.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, (TypeError, ImportError, ValueError)):
            raise UserError(f"{where}: {' '.join(str(cause).split())}") from error
        raise


def _measure(instantiate: Any, part: dict[str, Any], name: str, layout: Any) -> Any:
    try:
        return _construct(instantiate, part, f"measure.{name}")(layout)
    except UserError:
        raise
    except (TypeError, ValueError) as error:  # torchmetrics refuses unknown keys with the latter
        raise UserError(f"measure.{name}: {error}") from error


def _explained(make: Any, where: str) -> Any:
    """A partial of ``_construct``, with a wrong key named in one line when it is called."""

    def made(*args: Any) -> Any:
        try:
            return make(*args)
        except TypeError as error:
            raise UserError(f"{where}: {error}") from error

    return made


def _best_precision(accelerator: str) -> str:
    """bf16-mixed where the hardware multiplies bfloat16 faster than float32."""
    import torch

    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    if accelerator in ("auto", "cpu") and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "bf16-mixed"
    return "32-true"
