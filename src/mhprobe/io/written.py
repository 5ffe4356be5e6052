"""Numbers as people write them."""

import math
from typing import SupportsFloat


def rounded(value: SupportsFloat, digits: int = 2) -> str:
    """Return a number with ``digits`` significant digits, without an exponent where people would write none.

    >>> rounded(117.3), rounded(0.04149), rounded(3.0), rounded(1234.5, 3)
    ('120', '0.041', '3', '1230')
    """
    return f"{float(f'{float(value):.{digits}g}'):.{max(6, digits)}g}"


def digits_apart(low: float, high: float, least: int = 2) -> int | None:
    """Return the digits, ``least`` or more, whose last is at most half of an interval; None for one without width."""
    size, width = max(abs(low), abs(high)), high - low
    if not 1e-14 * size < width < math.inf:  # less is rounding
        return None
    first, last = (math.floor(math.log10(number)) for number in (size, 0.51 * width))
    return max(least, first - last + 1)


def with_interval(value: float, low: float, high: float) -> str:
    """Return a number with its interval, in as many digits as it needs; without one that has no width.

    >>> with_interval(3.0, 2.9, 3.1), with_interval(3.545, 3.527, 3.562), with_interval(0.5, 0.5, 0.5)
    ('3 (2.9 to 3.1)', '3.54 (3.53 to 3.56)', '0.5')
    """
    if (digits := digits_apart(low, high)) is None:
        return rounded(value)
    return f"{rounded(value, digits)} ({rounded(low, digits)} to {rounded(high, digits)})"


def percent(share: SupportsFloat, digits: int = 2) -> str:
    """Return a share in per cent, with ``digits`` significant digits.

    >>> percent(0.5), percent(0.0042), percent(0.9712, 3)
    ('50 %', '0.42 %', '97.1 %')
    """
    return f"{rounded(100 * float(share), digits)} %"


def counted(number: float, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "head"), counted(12, "head"), counted(1.0, "point"), counted(0.5, "point")
    ('1 head', '12 heads', '1 point', '0.5 points')
    """
    return f"{number:.12g} {noun if number == 1 else noun + 's'}"
