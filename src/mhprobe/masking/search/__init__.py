"""Searches of one greedy step: trying every unit, or fewer that are as good."""
