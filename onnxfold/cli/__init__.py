"""The command line: `application` registers the commands, each in the module of its name.

Nothing slow is imported before a command needs it; this package itself imports nothing, because the
process that waits for a command needs only `guard`.
"""
