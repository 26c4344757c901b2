import time, json, orjson, gc
from unbroken.decoding.decoder import Decoder
def stream(size, piece=8):
    args=json.dumps({"text":"x"*(size-12)})
    ev=[]
    def chunk(delta,finish=None):
        return b"data: "+orjson.dumps({"id":"chatcmpl-9f8e7d6c5b4a39281706f5e4","object":"chat.completion.chunk","created":1760000000,"model":"gpt-5-2025-08-07","service_tier":"default","system_fingerprint":"fp_0123456789","choices":[{"index":0,"delta":delta,"logprobs":None,"finish_reason":finish}],"usage":None})+b"\n\n"
    ev.append(chunk({"role":"assistant","content":None,"tool_calls":[{"index":0,"id":"call_abc","type":"function","function":{"name":"write","arguments":""}}]}))
    for i in range(0,len(args),piece):
        ev.append(chunk({"tool_calls":[{"index":0,"function":{"arguments":args[i:i+piece]}}]}))
    ev.append(chunk({},"tool_calls")); ev.append(b"data: [DONE]\n\n")
    return b"".join(ev)
def ours(body):
    d=Decoder("openai-chat")
    for i in range(0,len(body),4096): d.feed(body[i:i+4096])
    r=d.response(); assert r.calls[0].complete
def base(body):
    for e in body.split(b"\n\n"):
        if e.startswith(b"data: ") and e!=b"data: [DONE]": orjson.loads(e[6:])
def cpu(f,*a):
    t=time.process_time(); f(*a); return time.process_time()-t
b=stream(256*1024); b4=stream(1024*1024)
A=[];B=[];C=[]
for _ in range(7):
    A.append(cpu(ours,b)); B.append(cpu(base,b)); C.append(cpu(ours,b4))
A.sort();B.sort();C.sort()
print(len(b), "ours",A[3],"base",B[3],"ratio",A[3]/B[3],"min ratio",A[0]/B[0],"1MB/256K",C[3]/A[3])
A=[];B=[];C=[];D=[]
for _ in range(9):
    A.append(cpu(ours,b)); B.append(cpu(base,b)); C.append(cpu(ours,b4)); D.append(cpu(base,b4))
print("min", min(A),min(B),min(C),min(D), "ratio",min(A)/min(B), "4x ours",min(C)/min(A),"4x base",min(D)/min(B))
gc.disable()
print("nogc", cpu(ours,b4)/cpu(ours,b))
