"""One multiplier xi_h on every head's output; how it is learned is a file of this package, chosen by its yaml."""

from mhprobe.gates.base import HeadGates, find_gates, gates_of, put_on, remove_gates

__all__ = ["HeadGates", "find_gates", "gates_of", "put_on", "remove_gates"]
