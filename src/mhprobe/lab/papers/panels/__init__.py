"""Panels: functions of a ``Material`` that make a figure of a paper from columns, one file per kind."""
