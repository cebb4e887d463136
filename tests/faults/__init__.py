"""The fault campaign: real servers with real worker processes, every kind of fault, and what must hold through all of them.

    family.py    a pipeline without weights and without torch whose stages do what words of the prompt order
    worker.py    a worker between whose stages and driver items get lost or come twice
    served.py    the server as it is, with that pipeline, those workers and a look into its tables
    server.py    a server process seen from outside: start, state, figures, memory, kill
    clients.py   callers over plain sockets: fast, slow, and such as leave
    faults.py    the kinds of faults: how each is ordered and what its request may answer
    checks.py    the nine invariants
    scenes.py    deaths, strikes, a killed server, slow callers; memory.py: memory, also where there is none
    demo.py      the built-in model
    campaign.py  the runner, `make faults` (SEED= repeats a run)

Whoever is killed is killed by kill -9: workers and the server, and, where a server has them, its zygote, the helpers that prepare
inputs, and the driver.
"""
