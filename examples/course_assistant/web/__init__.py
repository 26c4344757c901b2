"""The course assistant in a browser: one page, and the server that streams the progress of a question to it."""
