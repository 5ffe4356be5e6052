"""The one exception that is the user's to mend.

Entry points print its text on one line and exit with code 2; everything else keeps its traceback.
Write it as: what, where, expected, got, next step.
"""


class UserError(ValueError):
    """Bad input. The message is one line that says how to go on."""
