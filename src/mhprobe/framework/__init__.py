"""The framework: Lightning trains, Hydra composes, W&B shows; these libraries are imported here and nowhere below.

``run`` puts together what a command asks for, ``training`` trains a classifier and watches it,
``questions`` ask a network and its images, ``loggers`` pass results on.
"""
