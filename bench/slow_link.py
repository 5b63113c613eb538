#!/usr/bin/env python3
"""A server of one file behind a slow link: `bench/slow_link.py FILE [--latency-ms 20] [--mbit 100]`.

It speaks HTTP/1.1 with range requests, kept connections and a strong entity tag. Each request waits the latency, which is
the round trip, before its answer begins, and all connections share the rate: pieces of 16 KiB leave one after the other, in
the order in which connections want to send them. The port is printed first.

`GET /.control?state=STATE` makes it `up`, `dead` (requests get no answer), `slow` (a byte of a body each half second) or
`flapping` (dead and up in turns of 700 ms; a body breaks off when it dies). `GET /.control?reset` sets the counters to zero.
Both answer with the counters as JSON, at once: requests, bytes of bodies, and the most bytes of one body.
"""

import argparse
import asyncio
import json
import os
import time

PIECE_BYTES = 16 << 10
# A link that was idle may send so much at once, so that late timers do not cost rate.
BURST_S = 0.005
TURN_S = 0.7
SLOW_PAUSE_S = 0.5


class Link:
    """The rate that all connections share."""

    def __init__(self, bytes_per_s):
        self.bytes_per_s, self.free_at = bytes_per_s, 0.0

    async def send(self, writer, piece):
        now = time.monotonic()
        self.free_at = max(self.free_at, now - BURST_S) + len(piece) / self.bytes_per_s
        if self.free_at > now:
            await asyncio.sleep(self.free_at - now)
        writer.write(piece)
        await writer.drain()


class Server:
    def __init__(self, path, latency_s, bytes_per_s):
        self.file, self.size = open(path, "rb"), os.path.getsize(path)
        self.latency_s, self.link = latency_s, Link(bytes_per_s)
        self.etag = f'"{self.size:x}-{os.stat(path).st_mtime_ns:x}"'
        self.state = "up"
        self.reset()

    def reset(self):
        self.requests = self.bytes = self.longest = 0

    def is_dead(self):
        return self.state == "dead" or (self.state == "flapping" and int(time.monotonic() / TURN_S) % 2 == 0)

    def control(self, query):
        if query.startswith("state="):
            self.state = query[len("state="):]
        elif query == "reset":
            self.reset()
        return json.dumps({"requests": self.requests, "bytes": self.bytes, "longest": self.longest}).encode()

    async def serve(self, reader, writer):
        try:
            while await self.answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(self, reader, writer):
        """Answers one request. Returns whether the connection stays."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        if target.startswith("/.control"):
            body = self.control(target.partition("?")[2])
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            return True
        self.requests += 1
        if self.is_dead():
            # A flapping server lets the request wait until the reader gives it up, too.
            await asyncio.sleep(3600)
        await asyncio.sleep(self.latency_s)
        if headers.get("if-match", self.etag) != self.etag:
            writer.write(b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n")
            return True
        start, end, status = 0, self.size, "200 OK"
        if "range" in headers:
            first, _, last = headers["range"].removeprefix("bytes=").partition("-")
            start, end, status = int(first), min(int(last) + 1 if last else self.size, self.size), "206 Partial Content"
            if start >= end:
                writer.write(b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n")
                return True
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {end - start}", f"ETag: {self.etag}", "Accept-Ranges: bytes"]
        if "range" in headers:
            lines.append(f"Content-Range: bytes {start}-{end - 1}/{self.size}")
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        return method == "HEAD" or await self.send_body(writer, start, end)

    async def send_body(self, writer, start, end):
        self.longest = max(self.longest, end - start)
        while start < end:
            if self.is_dead():
                return False
            is_slow = self.state == "slow"
            piece = os.pread(self.file.fileno(), 1 if is_slow else min(PIECE_BYTES, end - start), start)
            if is_slow:
                await asyncio.sleep(SLOW_PAUSE_S)
            await self.link.send(writer, piece)
            self.bytes += len(piece)
            start += len(piece)
        return True


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument("--mbit", type=float, default=100)
    args = parser.parse_args()
    slow = Server(args.file, args.latency_ms / 1e3, args.mbit * 1e6 / 8)
    server = await asyncio.start_server(slow.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
