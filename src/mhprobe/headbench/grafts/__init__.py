"""One graft per file; a file is found by being here."""
