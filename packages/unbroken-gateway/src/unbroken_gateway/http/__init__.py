"""The HTTP side of the gateway: the server process, ASGI, routes, the client's request, and errors in the client's
wire.

The entry is `uvicorn_server.serve`, which runs `unbroken_gateway.app.Gateway`.
"""
