"""The course assistant in a browser: one page, and the server that streams to it what a question becomes."""
