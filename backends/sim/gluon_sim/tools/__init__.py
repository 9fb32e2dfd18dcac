"""Tools that observe a launch: profiler, timeline, debugger."""
