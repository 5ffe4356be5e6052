"""Choosing which heads and neurons go, round by round, with what is promised for new images.

``surgery`` removes what was chosen.
"""
