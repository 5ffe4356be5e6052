"""Ramp of a penalty: not at all, then linearly, then in full."""

from mhprobe.errors import UserError


def ramp(progress: float, begin: float, rise: float) -> float:
    """0 until the share ``begin`` of the run, then up to 1 over the share ``rise``, then 1."""
    if progress < begin:
        return 0.0
    return min(1.0, (progress - begin) / rise) if rise else 1.0


def check_ramp(begin: float, rise: float) -> None:
    """Refuse shares that do not fit into the run."""
    if not (begin >= 0 and rise >= 0 and begin + rise <= 1):
        raise UserError(
            f"begin: begin and rise are shares of the run, expected begin + rise <= 1 and neither below 0, "
            f"got begin={begin}, rise={rise}."
        )
