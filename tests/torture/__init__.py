"""The torture test: real processes under real faults, and a checker that knows what may never happen.

    make torture                                     # everything, a few minutes
    cd tests && python -m torture.run --seconds 60 --seed 7 --only pause-store

Two gateways share a store (Valkey, or SQLite on a small disk) before one scripted model. Client processes hold
conversations that are as alike as they can be: the same user texts, the same tools, the same first calls, one scope.
Meanwhile `faults` kills and pauses the processes, loses the store and fills the disk. Every process appends what it saw
to a history (`history`), and when all is over `checker` reads the histories and reports what broke a promise:

    another's   a client received what the model said to somebody else
    mixed       the model was sent what it said in another conversation
    lost        a call of a held turn was never handed out, and nothing told the client
    doubled     a call was handed out twice in one branch
    disordered  calls were handed out in another order than the model's
    shortened   the model, or a client, got a turn without all its calls, and nothing told the client
    swapped     a result reached the model under another call than its own
    invalid     the model was sent a history that a provider refuses
    stale       a deliberate second answer was the first one
    malformed   an answer that a client's own SDK could not read
    stuck       a well-behaved client could not finish though nothing was broken any more
    hung        a request got no answer in time
    unhealthy   a live gateway did not answer /healthz
    crashed     a process of the test itself did not come to its end
    reopened    a key that was revoked, or whose budget is spent, was admitted again
    locked out  a known key was refused because the store was emptied
    overrun     more was spent than a budget or a limit per minute allows, or a budget was refused too early

The second part (`recorded_runs`) kills processes that record runs of an agent, and lets several resume each at once.
The ledger that the write tools keep shows what ran twice; the recording shows what is unanswered, invented, unfinished.

`overrun` has many clients spend a budget and a limit per minute through two gateways of two workers each, of which one
is killed.

`simulation` is the same with 200 gateways and up to a million conversations, on virtual time (`make simulate`).

The third part (`poison_runs`) drives durable runs that end every process that drives them, among others: these must
not be `harmed`, and the bad ones not driven `endless`ly.

The fourth part (`write_faults`) fails every write, sync and opening of a recording and of SQLite once, one at a time.

The plan (which faults, which conversations, who does what) comes from the seed alone. The order in which processes get
the CPU does not, so a run with the same seed tries the same things and may see something else.

`test_torture_checker` plants every violation in a history and sees that it is reported. `test_torture_short` is a few
seconds of all this in `make test`.
"""
