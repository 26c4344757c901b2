"""What the gateway remembers between requests: turns whose calls are held, released one by one and reassembled.

The entry is `turn_store.TurnStore`; `serial.decide` chooses between releasing a held call and asking the model.
"""
