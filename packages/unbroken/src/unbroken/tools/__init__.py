"""Python functions as tools: what they declare, how they are called, when they run."""
