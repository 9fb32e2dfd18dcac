"""What instructions do, by family: tables of functions over all waves and lanes at once."""
