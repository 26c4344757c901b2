from unbroken import connect
from unbroken_dph import run_program_sync

connect("openai:gpt-5", temprature=1)  # wrong
connect("openai:gpt-5", attempts="3")  # wrong
run_program_sync("x", None, modles={})  # wrong
