"""Options of commands that take plain words, and no settings of Hydra's."""

import argparse
import re
import sys
from typing import Any, NoReturn

from mhprobe.errors import UserError, quoted

READINGS = {  # options that say how images are read, with what they are
    "--mean": "mean of pixels in [0, 1] in training (default: found)",
    "--std": "their deviation, e.g. 0.229,0.224,0.225 (default: found)",
    "--levels": "white, or black,white, of over 8 bits (default: found)",
}


def numbers(text: str) -> float | list[float]:
    """Return the number, or the numbers between commas, in a text. ValueError for other texts, told by argparse."""
    parts = [float(part) for part in text.split(",")]
    return parts[0] if len(parts) == 1 else parts


def names_between_commas(text: str) -> bool | list[str]:
    """Return the names between commas in a text; True for "true"."""
    return True if text == "true" else text.split(",")


class Parser(argparse.ArgumentParser):
    """Python's parser of options, which answers bad input in one line instead of printing how to use the command."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError with what argparse found wrong."""
        raise UserError(f"{message}. {self.prog} --help says what there is.")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as Python does. UserError for a blank word, which would name the folder that one stands in."""
        words = sys.argv[1:] if args is None else list(args)
        for word in words:
            if not word.strip() or re.fullmatch(r"--[\w-]+=\s*", word):
                raise UserError(
                    f"an empty name: got {quoted(word)}, as of a variable of the shell that is not set. "
                    f"Give a name, or leave it out. {self.prog} --help says what there is."
                )
        return super().parse_known_args(words, namespace)

    def add_reading(self, option: str) -> None:
        """Add one of the options ``READINGS``."""
        self.add_argument(option, type=numbers, help=READINGS[option])

    def add_readings(self) -> None:
        """Add the options that say how images and foreign weights are read, of one name in all commands."""
        for option in READINGS:
            self.add_reading(option)
        self.add_argument("--prefix", help="of --weights: which network, e.g. student")
        self.add_argument(
            "--leave-out",
            type=names_between_commas,
            default=False,
            metavar="NAMES",
            help="of --weights: beginnings of names, or true",
        )
