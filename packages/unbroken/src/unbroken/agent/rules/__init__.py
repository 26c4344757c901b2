"""What the loop asks: each feature of a run is one file of rules, and `composing` lists those that an agent needs."""
