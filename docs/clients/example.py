"""Reserves ids from allocnode with the standard library alone: the NATS protocol over a socket, without TLS or passwords.

    example.py HOST:PORT[,HOST:PORT...] SEQUENCE COUNT [KEY]
"""
import itertools, json, random, secrets, socket, sys, time

AGAIN = {"unavailable", "fenced", "unknown_outcome"}  # every other code is final


class Allocnode:
    def __init__(self, servers):
        self.servers = servers
        self.cluster = None  # of the first answer: no other is believed
        self.seen = 0        # highest seq of any answer

    def answers(self, server, subject, body):
        """Sends one try, and yields what comes as its answer until 5 s have brought nothing."""
        host, port = server.rsplit(":", 1)
        with socket.create_connection((host, int(port)), 5) as conn, conn.makefile("rb") as stream:
            inbox = "_INBOX." + secrets.token_hex(16)
            hello = json.dumps({"verbose": False, "headers": True, "no_responders": True, "name": "example.py"})
            conn.sendall(f"CONNECT {hello}\r\nSUB {inbox} 1\r\nPUB {subject} {inbox} {len(body)}\r\n".encode() + body + b"\r\n")
            while line := stream.readline():
                verb, *args = line.split()
                if verb == b"PING":
                    conn.sendall(b"PONG\r\n")
                elif verb == b"-ERR":
                    raise ConnectionError(line.decode().strip())
                elif verb in (b"MSG", b"HMSG"):  # HMSG has the length of its headers before that of the whole
                    payload = stream.read(int(args[-1]) + 2)[:-2][int(args[-2]) if verb == b"HMSG" else 0:]
                    if not payload:
                        raise ConnectionError("no node serves")  # the server says so: status 503, no body
                    yield payload

    def reserve(self, sequence, count, key=None, within=60):
        """Returns the range [start, end). Raises TimeoutError when nothing is known: the same key asks again."""
        request = {"count": count, "key": key or secrets.token_hex(16), "ids": "string", "since": self.seen}
        body, deadline, last = json.dumps(request).encode(), time.monotonic() + within, None  # the same bytes at each try
        for attempt in itertools.count():
            try:
                for raw in self.answers(self.servers[attempt % len(self.servers)], "alloc.reserve." + sequence, body):
                    answer = json.loads(raw)
                    if "start" not in answer and "error" not in answer:
                        continue  # a stream that captured the subject: no answer
                    if self.cluster and answer.get("cluster", self.cluster) != self.cluster:
                        raise RuntimeError(f"another cluster answers: {raw}")
                    self.cluster = answer.get("cluster", self.cluster)
                    if "start" in answer:
                        self.seen = max(self.seen, answer["seq"])
                        return int(answer["start"]), int(answer["end"])
                    last = answer["error"]
                    if last["code"] not in AGAIN:
                        raise RuntimeError(f"{last['code']}: {last['message']}")
                    break
            except (OSError, ValueError) as e:  # not connected, no answer in time, not JSON
                last = e
            if time.monotonic() > deadline:
                raise TimeoutError(f"it may have happened; ask again with the key {request['key']}: {last}")
            time.sleep(random.uniform(0.5, 1) * min(0.05 * 2**attempt, 2))


allocnode = Allocnode(sys.argv[1].split(","))
for key in [sys.argv[4] if len(sys.argv) > 4 else None, None]:  # one with the key that was given, one with a new one
    start, end = allocnode.reserve(sys.argv[2], int(sys.argv[3]), key)
    print(f"{sys.argv[2]}: {start} to {end - 1}")
