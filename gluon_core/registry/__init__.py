"""The registry: load plugins, verify them, resolve names, select lowerings."""
