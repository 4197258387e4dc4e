"""`embedllm bench`: one workload, measured in turn in this library and in others, each in a process of its own.

A process runs `worker`, which opens one engine (`ours`, or one of the `peers`) and times the requested runs. The
parent draws the prompts (`workload`), lets one process after the other run, round by round (`rounds`), and says what
was found, on which machine (`report`, `machine`).
"""
