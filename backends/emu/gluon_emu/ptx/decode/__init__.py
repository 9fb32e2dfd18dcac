"""PTX modules: from text to functions of instructions."""
