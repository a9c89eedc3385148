"""XLA's and the profiler's protos, up to a program's memory peak."""
