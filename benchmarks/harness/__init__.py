"""What the parts share: rows and how they are timed, sizes, small networks, the record and its comparison."""
