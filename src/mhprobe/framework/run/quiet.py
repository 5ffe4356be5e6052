"""Warnings and logs of libraries that a user can do nothing about, left out, each with its reason."""

import logging
import warnings

WARNINGS = (
    ("LeafSpec", "torch moved a private class that Lightning still imports"),
    (
        "does not have many workers",
        "a memory-mapped gather is faster than worker processes for small images",
    ),
    ("sync_dist=True", "the logged numbers are reduced already, exactly, by torchmetrics"),
    ("Checkpoint directory", "resuming into the folder of a run is meant"),
    (
        "The dirpath has changed",
        "the best checkpoint is brought along, and last.ckpt is only the newest",
    ),
    (
        "callbacks used to create the checkpoint",
        "a resumed run may save at other steps than the one before",
    ),
    ("tensorboardX", "the csv logger is chosen"),
    ("smaller than the logging interval", "few images are a choice, and every epoch is logged"),
    ("command is available on your system but is not used", "a run beside SLURM is meant"),
    ("lr_scheduler.step", "mixed precision may skip its first step"),
)
LOGS = (
    "lightning.pytorch",
    "lightning.fabric",
    "fontTools",
    "matplotlib",
)  # devices found, tips, font subsets


def quiet() -> None:
    """Leave them out, and print mhprobe's own warnings as one line without file and number.

    Call it before anything else imports Lightning, which warns on import and sets its own levels
    and format.
    """
    for message, _ in WARNINGS:
        warnings.filterwarnings("ignore", message=f".*{message}")
    import lightning  # noqa: F401

    for library in LOGS:
        logging.getLogger(library).setLevel(logging.WARNING)
    with_place = warnings.formatwarning
    if with_place.__module__ == __name__:  # of an earlier call
        return

    def one_line(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        ours = category.__module__.startswith("mhprobe")
        return f"{message}\n" if ours else with_place(message, category, filename, lineno, line)

    warnings.formatwarning = one_line
