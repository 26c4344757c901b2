"""The HTTP side of the gateway: the server process, ASGI, routes, what a client asked for, and errors in its wire.

The entry is `uvicorn_server.serve`, which runs `unbroken.gateway.app.Gateway`.
"""
