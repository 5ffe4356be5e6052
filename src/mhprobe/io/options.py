"""Options of commands that take plain words, and no settings of Hydra's."""

import argparse
from typing import NoReturn

from mhprobe.errors import UserError


class Parser(argparse.ArgumentParser):
    """Python's parser of options, which answers bad input in one line instead of printing how to use the command."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError with what argparse found wrong."""
        raise UserError(f"{message}. {self.prog} --help says what there is.")
