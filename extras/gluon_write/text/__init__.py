"""The text and the syntax trees of functions: read, changed and tidied."""
