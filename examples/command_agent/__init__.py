"""A chat server that turns wishes into commands for a small block world, sentence by sentence, over WebSocket."""
