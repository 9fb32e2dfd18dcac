"""The solver: unknown layouts, their candidates, prices, and the choice with the least total price."""
