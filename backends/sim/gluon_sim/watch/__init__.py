"""What can be seen of a run: profile, timeline, debugger."""
