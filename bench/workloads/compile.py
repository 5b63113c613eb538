#!/usr/bin/env python3
"""Compiles a generated source file with fixed contents: with rustc if it is installed, else with cc.

The source is so large that the compiler is still working on it when `capture.py` stops it.
"""

import os
import random
import shutil
import sys
import tempfile


def rust(rng):
    """Yields structures, traits, closures and matches, which compilers represent as trees in memory."""
    yield "#![allow(dead_code)]\nuse std::collections::*;\npub trait Step { fn step(&self, x: u64) -> u64; }\n"
    for n in range(2500):
        fields = ", ".join("f%d: %s" % (i, rng.choice(("u8", "u32", "u64", "String", "Vec<u32>", "Option<u64>"))) for i in range(rng.randrange(2, 8)))
        arms = " ".join("%d => x.wrapping_mul(%d) ^ %d," % (i, rng.randrange(1 << 30), rng.randrange(1 << 30)) for i in range(rng.randrange(3, 9)))
        yield "#[derive(Debug, Clone, PartialEq, Default)]\npub struct S%d { %s }\n" % (n, fields)
        yield "impl Step for S%d { fn step(&self, x: u64) -> u64 { match x %% 9 { %s _ => x } } }\n" % (n, arms)
        yield ("pub fn f%d(v: &[u64]) -> BTreeMap<u64, String> { v.iter().map(|x| S%d::default().step(*x)).filter(|x| x %% %d != 0)"
               ".map(|x| (x, format!(\"{x:?}-%d\"))).collect() }\n") % (n, n, rng.randrange(2, 50), rng.randrange(1000))
    yield "fn main() {}\n"


def c(rng):
    """Yields similar source code in C."""
    yield "#include <stdint.h>\n"
    for n in range(60000):
        fields = " ".join("uint%d_t f%d;" % (rng.choice((8, 16, 32, 64)), i) for i in range(rng.randrange(2, 8)))
        cases = " ".join("case %d: x = x * %du ^ %du; break;" % (i, rng.randrange(1 << 30), rng.randrange(1 << 30)) for i in range(rng.randrange(3, 9)))
        yield "struct s%d { %s };\n" % (n, fields)
        yield "uint64_t f%d(const struct s%d *s, uint64_t x) { for (int i = 0; i < %d; i++) switch (x %% 9) { %s default: x += s->f0; } return x; }\n" % (n, n, rng.randrange(2, 50), cases)


def main():
    rng = random.Random(int(sys.argv[1]))
    folder = tempfile.mkdtemp(prefix="pagefold-bench-")
    with_rust = shutil.which("rustc") is not None
    source = os.path.join(folder, "input.rs" if with_rust else "input.c")
    with open(source, "w") as out:
        out.writelines(rust(rng) if with_rust else c(rng))
    # Prints the folder, so that `capture.py` can remove it: `exec` replaces this process.
    print("folder", folder, flush=True)
    output = os.path.join(folder, "output")
    if with_rust:
        os.execvp("rustc", ["rustc", "--edition=2021", "-Copt-level=2", "-Ccodegen-units=1", "-o", output, source])
    os.execvp("cc", ["cc", "-O2", "-c", "-o", output, source])


main()
