"""Gates: one multiplier xi_h on every head's output.

Each file is one way to learn them, chosen by its yaml.
"""

from mhprobe.gates.base import HeadGates, find_gates, form_of, gates_of, put_on, remove_gates

__all__ = ["HeadGates", "find_gates", "form_of", "gates_of", "put_on", "remove_gates"]
