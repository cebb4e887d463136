"""The runtime of one-shot and streaming modules: codecs, vocoders, synthesisers."""
