"""python -m mhprobe.maps: where attention, its rollouts and relevance point in single images (no training)."""

from mhprobe.cli import main

main("maps")
