"""The commands: arguments in, a library call, an exit status out."""
