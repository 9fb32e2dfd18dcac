"""The model of time: when each warp of a block does what, in nanoseconds, without a device.

A sample of a launch's programs is executed once; `recorder` notes what each task issues and waits for (`stream`), priced by
the architecture's `Timing` (`costs`). `engine` replays the streams of the blocks of one multiprocessor against its shared units, and
`grid` extends the result to all of them.
"""
