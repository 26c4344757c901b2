"""Where a request becomes deltas: HTTP to any provider, or a script. The only room that awaits a provider."""
