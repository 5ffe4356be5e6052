"""Options that were renamed: the old spelling -> the new one."""

from __future__ import annotations

TARGETS = {  # classes that a yaml of one's own may name
    "mhprobe.callbacks.maskable.Maskable": "mhprobe.masking.redundant_or_inert.RedundantOrInert",
}

MOVED = {  # a section, or group/option
    "settling": "+callback=settling adds it; its options are callback.settling.every_n_epochs, .measure and .shares",
    "prune/fisher": "prune=order prune/order=fisher prune.remove=<how many> (or prune.target={flops:0.8})",
    "prune/measure": "prune=order prune/order=by_score prune.remove=<how many> "
    "(prune.order.measure._target_=<the measure's class>)",
    "prune/scores": "prune=order prune/order=by_table prune.order.table=<.csv> prune.remove=<how many>",
    "prune/curve": "prune=given prune.heads=<masking_curves.csv> prune.curve=<name> "
    "prune.step=<k> (or prune.remove=<n>)",
    "prune/gates": "prune=given prune.heads=gates",
    "prune/kept": "prune=given prune.heads=<a table with the columns head and kept>",
    "prune/file": "prune=given prune.heads=<the file>",
    "prune/list": "prune=given prune.heads=[3,17]",
}
