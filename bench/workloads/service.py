"""A Python service in its steady state: fixed seed, no input, the same heap every time.

Builds what such services hold (records, an inverted index, parse trees, a cache, arrays), keeps it
alive while some of it is replaced, prints `ready`, and waits for the end of its standard input.
"""

import array
import ast
import collections
import decimal
import inspect
import json
import random
import sys
import textwrap

WORDS = (
    "account active address amount archive balance batch branch buffer cache channel client commit "
    "country created customer default deleted delivery device discount duration email enabled entry "
    "error event expires failed filter folder group header history index invoice item kernel label "
    "language last limit list locale location memory message method model name network number object "
    "offset order owner page parent password pending phone policy price product profile query queue "
    "region request response result retry role schema score section server service session shipped "
    "source status store stream table target task tenant thread ticket token total type unit update "
    "user value vendor version visible warehouse window worker zone"
).split()


def record(rng, number):
    """One customer order, as a web service would hold it."""
    return {
        "id": number,
        "uuid": "%032x" % rng.getrandbits(128),
        "name": " ".join(rng.choice(WORDS).capitalize() for _ in range(2)),
        "email": "%s.%s@example.%s" % (rng.choice(WORDS), rng.choice(WORDS), rng.choice(("com", "org", "net"))),
        "created": 1_700_000_000 + rng.randrange(60_000_000),
        "score": round(rng.random(), 3),
        "active": rng.random() < 0.7,
        "tags": rng.sample(WORDS, rng.randrange(1, 6)),
        "items": [
            {"sku": rng.choice(WORDS) + "-%05d" % rng.randrange(20_000), "count": rng.randrange(1, 9), "price": round(rng.expovariate(0.02), 2)}
            for _ in range(rng.randrange(1, 5))
        ],
        "note": " ".join(rng.choices(WORDS, k=rng.randrange(0, 25))),
    }


def main():
    rng = random.Random(int(sys.argv[1]))
    records = [record(rng, n) for n in range(38_000)]
    index = collections.defaultdict(set)
    for r in records:
        for word in r["note"].split() + r["tags"]:
            index[word].add(r["id"])
    trees = [ast.parse(inspect.getsource(m)) for m in (ast, decimal, inspect, json, random, textwrap, collections)]
    cache = collections.OrderedDict()
    for step in range(30_000):
        n = rng.randrange(len(records))
        cache[n] = json.dumps(records[n])
        if len(cache) > 8_000:
            cache.popitem(last=False)
        if step % 3 == 0:
            records[n] = record(rng, n)
    series = array.array("d", (round(rng.gauss(100.0, 15.0), 1) for _ in range(400_000)))
    counts = array.array("i", (int(rng.expovariate(0.1)) for _ in range(800_000)))
    blank = bytearray(3_000_000)
    keep = (records, index, trees, cache, series, counts, blank)
    print("ready", len(keep), flush=True)
    sys.stdin.read()


main()
