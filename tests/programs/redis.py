"""A client of redis, without its library. `redis.py ADDRESS fill|save|digest|follow`: what it prints depends on
redis' data alone. `redis.py ADDRESS forever`: load, until a connection ends."""
import hashlib
import random
import socket
import sys
import time

KEYS = 400


class Redis:
    def __init__(self, address):
        self.sock = socket.create_connection((address, 6379))
        self.stream = self.sock.makefile("rb")

    def send(self, *words):
        data = [b"*%d\r\n" % len(words)]
        for word in words:
            word = word if isinstance(word, bytes) else str(word).encode()
            data.append(b"$%d\r\n%b\r\n" % (len(word), word))
        self.sock.sendall(b"".join(data))

    def receive(self):
        line = self.stream.readline()
        assert line.endswith(b"\r\n"), line
        kind, rest = line[:1], line[1:-2]
        if kind in b"+:":
            return rest
        if kind == b"$":
            if rest == b"-1":
                return None
            return self.stream.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.receive() for _ in range(int(rest))]
        raise RuntimeError(line.decode())

    def ask(self, *words):
        self.send(*words)
        return self.receive()


def value(number):
    generator = random.Random(number)
    return generator.randbytes(generator.choice([1, 60, 1000, 20_000, 200_000]))


def digest(redis):
    """Of all keys that `fill` has set, asked for ten at a time."""
    sum = hashlib.sha256()
    for first in range(0, KEYS, 10):
        for number in range(first, first + 10):
            redis.send("GET", f"key{number}")
        for number in range(first, first + 10):
            found = redis.receive()
            assert found == value(number), f"key{number}"
            sum.update(found)
    return sum.hexdigest()


def fill(redis):
    for number in range(KEYS):
        assert redis.ask("SET", f"key{number}", value(number)) == b"OK"
    print("filled", digest(redis))


def save(redis):
    """A snapshot, then a rewrite of the log, while other keys change."""
    other = Redis(sys.argv[1])
    for order, done in (("BGSAVE", b"rdb_bgsave_in_progress:0"), ("BGREWRITEAOF", b"aof_rewrite_in_progress:0")):
        redis.ask(order)
        count = 0
        while done not in redis.ask("INFO", "persistence") or count < 500:
            assert other.ask("SET", f"other{count}", b"x" * 1000) == b"OK"
            count += 1
        for number in range(count):
            other.ask("DEL", f"other{number}")
    info = redis.ask("INFO", "persistence")
    assert b"rdb_last_bgsave_status:ok" in info and b"aof_last_bgrewrite_status:ok" in info
    assert redis.ask("SAVE") == b"OK"
    print("saved")


def follow(redis):
    until = time.monotonic() + 60
    while b"master_link_status:up" not in redis.ask("INFO", "replication"):
        assert time.monotonic() < until, "the replica has no link"
        time.sleep(0.05)
    print("replica", digest(redis))


def forever(redis):
    all = [redis] + [Redis(sys.argv[1]) for _ in range(49)]
    while True:
        for one in all:
            for number in range(8):
                one.send("SET", f"key{number}", b"x" * 1000)
        for one in all:
            for number in range(8):
                assert one.receive() == b"OK"


redis = Redis(sys.argv[1])
if sys.argv[2] == "digest":
    print("digest", digest(redis))
else:
    {"fill": fill, "save": save, "follow": follow, "forever": forever}[sys.argv[2]](redis)
