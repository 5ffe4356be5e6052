"""Gates: one multiplier xi_h on every head's output.

Each file is one way to learn them, chosen by its yaml.
"""

from mhprobe.gates.base import HeadGates, find_gates, gates_of, put_on, remove_gates, sizes_in

__all__ = ["HeadGates", "find_gates", "gates_of", "put_on", "remove_gates", "sizes_in"]
