"""The pure state machine that routes requests through stages: events in, commands out."""
