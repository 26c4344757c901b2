"""What a run leaves behind: recordings, and what is done with them and with its events (replay, metrics, traces)."""
