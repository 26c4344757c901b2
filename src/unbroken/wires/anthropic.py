from unbroken.wires import openai_chat
from unbroken.wires.wire import Wire

WIRE = Wire("anthropic-messages", openai_chat.ChatDecoder, openai_chat.ChatEncoder, openai_chat.encode_request, openai_chat.decode_request)
