//! The options of `disk create` in pairs: in some run, each value of an option meets each value of every other one. A run
//! makes a disk, does random requests, passes and changes, and compares all that it reads with plain bytes.
//!
//! The runs follow from a seed, another one each time; `PAGEFOLD_SEED` repeats one.

use crate::support::{Nbd, Sandbox, no_loop};
use std::collections::BTreeSet;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const PAGE: usize = 4096;
/// The bytes at the beginning of a disk that requests go to.
const USED: usize = 1 << 20;
/// The requests of a run.
const REQUESTS: u64 = 60;
/// The time for all runs; the remaining ones are left out on a slow machine.
const LONGEST: Duration = Duration::from_secs(50);

/// The options with their values. `BACKING` stands for a path.
const OPTIONS: [&[&str]; 8] = [
    &["--size 1M", "--size 2000000", "--size 8G"],
    &["", "--codec zstd:1", "--codec numbers", "--codec deflate:6", "--codec lzo-rle"],
    &["", "--memory 0", "--memory 512K", "--memory 64M"],
    &[
        "",
        "--backing BACKING",
        "--backing BACKING --compressed-writeback off",
        "--backing BACKING --writeback-daily 1M",
    ],
    &["", "--recompress-codec zstd:9", "--recompress-after 1s=zstd:3 --recompress-codec deflate:9"],
    &["--export nbd", "--export loop"],
    &["", "--sector-size 512"],
    &["", "--fuse-uring off", "--fuse-uring on"],
];

/// The choice of a value for each option.
type Row = [usize; OPTIONS.len()];

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 8) % end
    }
}

/// Whether `disk create` refuses these values together, or this machine cannot have them.
fn is_excluded(values: &[&str], has_loop: bool) -> bool {
    let has = |value: &str| values.contains(&value);
    let has_rings = has("--fuse-uring on");
    has("--export nbd") && has_rings || (has("--export loop") || has_rings) && !has_loop
}

/// The pairs of values in a row, as (option, value, option, value).
fn pairs(row: &Row) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let row = *row;
    (0..row.len()).flat_map(move |a| (a + 1..row.len()).map(move |b| (a, row[a], b, row[b])))
}

/// Rows in which all pairs occur: each is the best of some random ones.
fn rows(random: &mut Random, has_loop: bool) -> Vec<Row> {
    let mut open = BTreeSet::new();
    for (a, of_a) in OPTIONS.iter().enumerate() {
        for (b, of_b) in OPTIONS.iter().enumerate().skip(a + 1) {
            for (i, x) in of_a.iter().enumerate() {
                let wanted = of_b.iter().enumerate().filter(|(_, y)| !is_excluded(&[x, y], has_loop));
                open.extend(wanted.map(|(j, _)| (a, i, b, j)));
            }
        }
    }
    // A value that is excluded alone is in no row.
    open.retain(|(a, i, b, j)| {
        !is_excluded(&[OPTIONS[*a][*i]], has_loop) && !is_excluded(&[OPTIONS[*b][*j]], has_loop)
    });
    let mut rows = Vec::new();
    while let Some((a, i, b, j)) = open.first().copied() {
        let mut candidates = Vec::new();
        while candidates.len() < 40 {
            let mut row: Row = std::array::from_fn(|at| random.below(OPTIONS[at].len() as u64) as usize);
            (row[a], row[b]) = (i, j);
            let values: Vec<&str> = row.iter().zip(OPTIONS).map(|(value, of)| of[*value]).collect();
            if !is_excluded(&values, has_loop) {
                candidates.push(row);
            }
        }
        let best = candidates.into_iter().max_by_key(|row| pairs(row).filter(|p| open.contains(p)).count());
        let best = best.unwrap();
        open = &open - &pairs(&best).collect();
        rows.push(best);
    }
    rows
}

/// A buffer that direct I/O takes.
#[repr(align(4096))]
struct Aligned([u8; 8 * PAGE]);

/// The way to the bytes of a disk.
enum Access {
    Nbd(Nbd),
    Loop(std::fs::File, Box<Aligned>),
}

impl Access {
    fn open(s: &Sandbox, device: &str) -> Self {
        if device.starts_with("nbd") {
            return Access::Nbd(Nbd::connect(&s.runtime().join("x/nbd.sock")));
        }
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(device).unwrap();
        Access::Loop(file, Box::new(Aligned([0; 8 * PAGE])))
    }

    fn try_write(&mut self, offset: usize, data: &[u8]) -> bool {
        match self {
            Access::Nbd(nbd) => nbd.try_write(offset as u64, data),
            Access::Loop(file, buffer) => {
                buffer.0[..data.len()].copy_from_slice(data);
                file.write_all_at(&buffer.0[..data.len()], offset as u64).is_ok()
            }
        }
    }

    fn try_zero(&mut self, offset: usize, len: usize) -> bool {
        match self {
            Access::Nbd(nbd) => nbd.try_zero(offset as u64, len as u32),
            Access::Loop(file, _) => {
                use rustix::fs::FallocateFlags as Flags;
                let flags = Flags::PUNCH_HOLE | Flags::KEEP_SIZE;
                rustix::fs::fallocate(file, flags, offset as u64, len as u64).is_ok()
            }
        }
    }

    fn read(&mut self, offset: usize, len: usize) -> Vec<u8> {
        match self {
            Access::Nbd(nbd) => {
                let mut data = vec![0; len];
                nbd.read(offset as u64, &mut data);
                data
            }
            Access::Loop(file, buffer) => {
                file.read_exact_at(&mut buffer.0[..len], offset as u64).unwrap();
                buffer.0[..len].to_vec()
            }
        }
    }
}

/// A range of at most 8 pages, in units.
fn range(random: &mut Random, unit: usize) -> (usize, usize) {
    let len = (1 + random.below((8 * PAGE / unit) as u64) as usize) * unit;
    let offset = random.below(((USED - len) / unit + 1) as u64) as usize * unit;
    (offset, len)
}

/// Bytes that compress to about a share of their length that is drawn.
fn data(random: &mut Random, len: usize) -> Vec<u8> {
    let period = [1, 16, 4096, usize::MAX][random.below(4) as usize];
    let mut data: Vec<u8> = Vec::with_capacity(len);
    for at in 0..len {
        let byte = if at < period { random.next() as u8 } else { data[at - period] };
        data.push(byte);
    }
    data
}

/// Checks what a refused request has left: each page has the old or the new bytes. Takes over what is there.
fn settle(access: &mut Access, model: &mut [u8], offset: usize, new: &[u8]) {
    let (first, end) = (offset / PAGE * PAGE, (offset + new.len()).next_multiple_of(PAGE));
    for page in (first..end).step_by(PAGE) {
        let mut changed = model[page..page + PAGE].to_vec();
        let (from, to) = (page.max(offset), (page + PAGE).min(offset + new.len()));
        changed[from - page..to - page].copy_from_slice(&new[from - offset..to - offset]);
        let found = access.read(page, PAGE);
        assert!(found == changed || found == model[page..page + PAGE], "page {} is torn", page / PAGE);
        model[page..page + PAGE].copy_from_slice(&found);
    }
}

fn run(s: &Sandbox, words: &str, random: &mut Random) {
    let words = words.replace("BACKING", s.path("backing").to_str().unwrap());
    let device = s.ok(&format!("disk create -q --name x {words}"));
    let mut access = Access::open(s, device.trim_end());
    let unit = match (&access, words.contains("--sector-size 512")) {
        (Access::Nbd(_), _) => 1 << random.below(13),
        (Access::Loop(..), true) => 512,
        (Access::Loop(..), false) => PAGE,
    };
    let mut model = vec![0; USED];
    for request in 0..REQUESTS {
        let (offset, len) = range(random, unit);
        let (new, done) = match random.below(8) {
            0 => (vec![0; len], access.try_zero(offset, len)),
            1 => {
                assert!(access.read(offset, len) == model[offset..offset + len], "{offset} {len}");
                continue;
            }
            _ => {
                let new = data(random, len);
                let done = access.try_write(offset, &new);
                (new, done)
            }
        };
        match done {
            true => model[offset..offset + len].copy_from_slice(&new),
            false => {
                assert!(words.contains("--memory 512K"), "refused without a small limit");
                settle(&mut access, &mut model, offset, &new);
            }
        }
        if request == REQUESTS / 2 {
            change(s, &words);
        }
    }
    for offset in (0..USED).step_by(8 * PAGE) {
        assert!(access.read(offset, 8 * PAGE) == model[offset..offset + 8 * PAGE], "at {offset}");
    }
    let shown = s.show("x");
    assert_eq!(shown["writeback"].is_null(), !words.contains("--backing"), "{shown}");
    assert_eq!(shown["recompression"].is_null(), !words.contains("--recompress"), "{shown}");
    drop(access);
    s.ok("disk remove x --force");
    assert!(!s.path("backing").exists());
    assert_eq!(s.left(), Vec::<String>::new());
}

/// Passes and changes in the middle of a run.
fn change(s: &Sandbox, words: &str) {
    if words.contains("--backing") {
        let all = s.run("disk writeback x --all");
        assert!(all.code == 0, "{all:?}");
    }
    if words.contains("--recompress") {
        s.ok("disk recompress x --idle 0s");
    }
    s.ok("disk set x same_filled_pages_enabled=0 idle=all compact=1");
}

#[test]
fn every_pair_of_options_keeps_the_contents() {
    let test = "every_pair_of_options_keeps_the_contents";
    if std::env::var_os("PAGEFOLD_FULL").is_none() {
        return pagefold_testkit::skipped!("{test}: takes half a minute; set PAGEFOLD_FULL=1");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("PAGEFOLD_SEED").map_or(now, |seed| seed.parse().unwrap());
    let mut random = Random(seed | 1);
    let rows = rows(&mut random, no_loop().is_none());
    let (start, s) = (Instant::now(), Sandbox::new());
    for (number, row) in rows.iter().enumerate() {
        if start.elapsed() > LONGEST {
            println!("{number} of {} runs, seed {seed}", rows.len());
            break;
        }
        let words: Vec<&str> = row.iter().zip(OPTIONS).map(|(value, of)| of[*value]).collect();
        let words = words.join(" ");
        println!("seed {seed}, run {number}: {words}");
        run(&s, &words, &mut random);
    }
}

#[test]
fn every_pair_is_in_some_row() {
    for has_loop in [false, true] {
        let rows = rows(&mut Random(7), has_loop);
        assert!(rows.len() < 60, "{}", rows.len());
        let found: BTreeSet<_> = rows.iter().flat_map(pairs).collect();
        let (codecs, memory) = (OPTIONS[1].len(), OPTIONS[2].len());
        assert!((0..codecs).all(|i| (0..memory).all(|j| found.contains(&(1, i, 2, j)))));
        assert_eq!(found.contains(&(5, 1, 7, 2)), has_loop, "loop with rings");
        assert!(!found.contains(&(5, 0, 7, 2)), "NBD with rings");
    }
}
