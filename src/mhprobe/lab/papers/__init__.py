"""Studies of single papers: the commands causal, sweep and voita, and the figures that mhprobe.study draws."""
