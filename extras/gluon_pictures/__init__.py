"""Pictures of layouts: text, SVG and HTML."""
