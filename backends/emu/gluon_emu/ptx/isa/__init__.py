"""Instructions of whole PTX modules, one file per family; arithmetic is that of inline assembly."""
