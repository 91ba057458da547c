"""The command line: `application` registers the commands, each in a module of its name.

Nothing heavy is imported before a command needs it; this package imports nothing by itself, for the
process that waits for a command needs `guard` alone.
"""
