"""What several model families share: loading, attention, key/value caches, streaming state."""
