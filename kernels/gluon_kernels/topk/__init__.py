"""The largest elements of rows, and running sums."""
