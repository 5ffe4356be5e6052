"""Numbers as people write them."""

import math
from collections.abc import Sequence
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
    ('3.0 (2.9 to 3.1)', '3.54 (3.53 to 3.56)', '0.5')
    """
    if (digits := digits_apart(low, high)) is None:
        return rounded(value)
    return "{} ({} to {})".format(*aligned((value, low, high), digits))


def aligned(numbers: Sequence[float], digits: int) -> list[str]:
    """Return numbers with the decimals, also zeros, that the largest has with ``digits`` significant digits.

    >>> aligned((0.013, 0.0101, 0.017), 2), aligned((0.011, 0.0084), 2), aligned((117.3, 3), 2)
    (['0.013', '0.010', '0.017'], ['0.011', '0.008'], ['120', '3'])
    """
    largest = float(f"{max(map(abs, numbers)):.{digits}g}")
    decimals = digits - 1 - math.floor(math.log10(largest)) if 0 < largest < math.inf else 0
    if not 0 <= decimals < digits + 4:  # none, or an exponent
        return [rounded(number, digits) for number in numbers]
    return [f"{round(number, decimals) + 0.0:.{decimals}f}" for number in numbers]  # no "-0.00"


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
