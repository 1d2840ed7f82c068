"""gRPC. `server`; `client ADDRESS`: prints checksums that depend on nothing but this file; `forever ADDRESS`."""
import hashlib
import sys
from concurrent import futures

import grpc

PORT = 8400
KINDS = {"unary": "unary_unary", "down": "unary_stream", "up": "stream_unary", "both": "stream_stream"}


def pattern(seed, length):
    return bytes((place * 31 + seed * 17 + (place >> 8)) & 255 for place in range(length))


def digest(parts):
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def up(requests, context):
    return digest(list(requests)).encode()


def down(request, context):
    for _ in range(64):
        yield request


def both(requests, context):
    yield from requests


class Service(grpc.GenericRpcHandler):
    def service(self, details):
        handlers = {"unary": lambda request, context: request, "down": down, "up": up, "both": both}
        name = details.method.rsplit("/", 1)[1]
        return getattr(grpc, KINDS[name] + "_rpc_method_handler")(handlers[name])


def serve():
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((Service(),))
    assert server.add_insecure_port(f"0.0.0.0:{PORT}") == PORT
    server.start()
    server.wait_for_termination()


def exchange(address):
    with grpc.insecure_channel(f"{address}:{PORT}") as channel:
        grpc.channel_ready_future(channel).result(timeout=20)
        calls = {name: getattr(channel, kind)("/echo/" + name) for name, kind in KINDS.items()}
        large, small = pattern(1, 65536), [pattern(seed, 100 + seed) for seed in range(500)]
        under_way = [calls["unary"].future(message) for message in small]
        print("unary", digest([call.result() for call in under_way]))
        print("down", digest(list(calls["down"](large))))
        print("up", calls["up"](iter([large] * 64)).decode())
        print("both", digest(list(calls["both"](iter(small + [large] * 16)))))


if sys.argv[1] == "server":
    serve()
else:
    exchange(sys.argv[2])
    while sys.argv[1] == "forever":
        exchange(sys.argv[2])
