"""Programs and processes of the testbed, and background threads.

No process of `owned` outlives its owner. `owned` finds every process by the directory it belongs
to; it imports only the standard library, because it also runs as a script. `binaries` provides
programs, `chromium` runs a browser for tests, `ports` finds free ports, and `background` runs a
coroutine in a thread.
"""
