from unbroken_gateway import GatewaySettings, UpstreamSettings

UpstreamSettings("demo")  # wrong
UpstreamSettings("demo", "demo", wait=3, timout=3)  # wrong
GatewaySettings((UpstreamSettings("demo", "demo"),), port="8400")  # wrong
