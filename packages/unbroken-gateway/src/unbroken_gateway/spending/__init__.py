"""What requests cost: the ledger in the store, budgets, limits per minute, and reports.

A gateway loads it only if it is used: by `[spend]`, `[[budgets]]` or `[[teams]]` in its configuration, or by a key.
"""
