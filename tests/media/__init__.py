"""Pictures, sounds and videos from callers to the processor, through the program as it is.

family.py    a pipeline without weights that says what it was shown, and obeys some files
served.py    the program with that pipeline
"""
