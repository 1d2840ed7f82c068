"""gRPC as Python programs use it. `serve`; or `stream ADDRESS SECONDS`: messages of 64 KB from the server, or
`unary ADDRESS SECONDS`: calls of 100 bytes, 64 at a time."""
import sys
import time
from concurrent import futures

import grpc

PORT = 5005
CHUNK = b"x" * 65536


class Service(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == "/load/unary":
            return grpc.unary_unary_rpc_method_handler(lambda request, context: request)
        return grpc.unary_stream_rpc_method_handler(self.stream)

    @staticmethod
    def stream(request, context):
        for _ in range(int(request) // len(CHUNK)):
            yield CHUNK


def serve():
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((Service(),))
    assert server.add_insecure_port(f"0.0.0.0:{PORT}") == PORT
    server.start()
    server.wait_for_termination()


def stream(channel, until):
    call, count = channel.unary_stream("/load/stream"), 0
    while time.monotonic() < until:
        count += sum(len(message) for message in call(str(64 << 20).encode()))
    return count


def unary(channel, until):
    call, count, under_way = channel.unary_unary("/load/unary"), 0, []
    while time.monotonic() < until:
        under_way.append(call.future(b"y" * 100))
        if len(under_way) >= 64:
            count += len(under_way.pop(0).result()) == 100
    return count + sum(len(call.result()) == 100 for call in under_way)


if sys.argv[1] == "serve":
    serve()
else:
    kind, address, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    with grpc.insecure_channel(f"{address}:{PORT}") as channel:
        grpc.channel_ready_future(channel).result(timeout=20)
        begin = time.monotonic()
        count = {"stream": stream, "unary": unary}[kind](channel, begin + seconds)
        print("bytes" if kind == "stream" else "requests", count, time.monotonic() - begin)
