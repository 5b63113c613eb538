// A Node.js service in its steady state: fixed seed, no input, much the same heap every time.
//
// The counterpart of service.py: records, parsed JSON, maps, strings, typed arrays; part of it is
// replaced while it runs. Prints `ready` and waits for the end of its standard input.
'use strict';

// xoroshiro64*, after Blackman and Vigna (public domain).
let s0 = Number(process.argv[2]) >>> 0;
let s1 = 0x9e3779b9;
function next() {
  const result = Math.imul(s0, 0x9e3779bb) >>> 0;
  const t = s1 ^ s0;
  s0 = ((s0 << 26) | (s0 >>> 6)) ^ t ^ (t << 9);
  s1 = (t << 13) | (t >>> 19);
  return result / 4294967296;
}
const below = (n) => Math.floor(next() * n);
const WORDS = ('account active address amount archive balance batch branch buffer cache channel client commit ' +
  'country created customer default deleted delivery device discount duration email enabled entry error event ' +
  'expires failed filter folder group header history index invoice item kernel label language last limit list ' +
  'locale location memory message method model name network number object offset order owner page parent ' +
  'password pending phone policy price product profile query queue region request response result retry role ' +
  'schema score section server service session shipped source status store stream table target task tenant ' +
  'thread ticket token total type unit update user value vendor version visible warehouse window worker zone').split(' ');
const word = () => WORDS[below(WORDS.length)];

function record(id) {
  const items = [];
  for (let i = 1 + below(4); i > 0; i--) {
    items.push({ sku: word() + '-' + below(20000), count: 1 + below(8), price: Math.round(next() * 10000) / 100 });
  }
  const note = [];
  for (let i = below(25); i > 0; i--) note.push(word());
  return {
    id, uuid: [below(1e9), below(1e9), below(1e9)].map((x) => x.toString(16)).join('-'), name: word() + ' ' + word(),
    email: word() + '.' + word() + '@example.com', created: 1.7e12 + below(6e10), score: below(1000) / 1000,
    active: next() < 0.7, tags: [word(), word(), word()], items, note: note.join(' '),
  };
}

const records = [];
for (let n = 0; n < 45000; n++) records.push(record(n));
const index = new Map();
for (const r of records) {
  for (const w of r.tags) {
    if (!index.has(w)) index.set(w, new Set());
    index.get(w).add(r.id);
  }
}
const cache = new Map();
for (let step = 0; step < 40000; step++) {
  const n = below(records.length);
  cache.set(n, JSON.stringify(records[n]));
  if (cache.size > 8000) cache.delete(cache.keys().next().value);
  if (step % 3 === 0) records[n] = JSON.parse(JSON.stringify(record(n)));
}
const series = Float64Array.from({ length: 400000 }, () => Math.round(1000 * (next() + next() + next())) / 10);
const counts = Int32Array.from({ length: 800000 }, () => below(100));
const blank = new Uint8Array(3000000).fill(0);
globalThis.keep = [records, index, cache, series, counts, blank];
process.stdout.write('ready\n');
process.stdin.on('end', () => process.exit(0)).resume();
