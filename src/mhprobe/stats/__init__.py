"""Statistics of scores and ranks. Plain numbers in, plain numbers out."""
