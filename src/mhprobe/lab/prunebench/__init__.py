"""PruneBench: methods of pruning beside each other on one network, at equal FLOPs, over seeds."""
