"""The language server of `gluon lsp`: `analysis` runs a file for its hints, `document` keeps them while the text changes, `server` answers."""
