"""mhprobe diff: two networks, found by their names, compared on photographs, and the page of it."""
