"""Carries out the commands that `controller.disruption` decides.

`disruptor` is the loop that decides: it runs the disruption methods in order, and begins the
commands of the first method that has any. `orchestration` carries out these commands, `advising`
handles commands that wait for approval or are only reported, and `history` records them. `observer`
is the loop of a controller in the mode `observe`, which begins no command.
"""
