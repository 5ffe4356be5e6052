"""One plant per file; a file is found by being here."""
