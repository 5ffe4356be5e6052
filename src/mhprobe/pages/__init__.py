"""Pages: report.html of a run, its comparison with others, and the pages that answer clicks.

They read a run's ledger and tables. Only the pages of a living network (``look``, ``live``) read
one.
"""
