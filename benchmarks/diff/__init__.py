"""How often ``mhprobe diff`` finds what was planted, and how often it finds something where nothing is."""
