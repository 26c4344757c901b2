"""Python functions as tools: what they promise, how they are called, when they run."""
