"""The lab: what repeats papers, judges their claims, and benches measures and methods.

It may import everything; nothing imports it but the commands.
"""
