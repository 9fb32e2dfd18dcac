"""Products of groups of rows with the matrix of their expert."""
