"""Commands of the studies of single papers: ``python -m mhprobe.studies.voita`` and its like.

Their code is in ``mhprobe.lab.papers``.
"""
