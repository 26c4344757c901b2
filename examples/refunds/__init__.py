"""An agent that refunds orders: large refunds wait for a person, and the payments have a ledger of their own."""
