"""A request on its way to a model and the answer on its way back, on the same wire or across two.

The entry is `responder.Responder`.
"""
