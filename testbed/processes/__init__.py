"""What runs here: binaries, the processes made of them, and threads beside ours.

Nothing outlives its owner. `owned` knows every process by the directory it belongs to and imports
nothing but the standard library, for it is also run by itself; `binaries` says where a program
comes from, `ports` which port it may have, `background` gives a coroutine a thread.
"""
