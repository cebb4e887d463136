"""The server's figures against its callers' own: every request is counted on both sides, and the sums are equal.

family.py    a pipeline without weights whose every token, sample and byte can be told beforehand
thinker.py   its first stage, a model of no layers worth the name in the real autoregressive engine
served.py    the server as it is, with that pipeline
callers.py   callers that count what they get, and leave when they were told to
run.py       two hundred requests of every kind, and what both sides counted
"""
