//! Fills more memory than the machine has, rewrites parts of it, and checks every byte.
//!
//! usage: hog MIB PASSES [random=PERCENT] [spoil]
//!
//! The contents of a page are a function of its index and of the pass that last wrote it, and that pass is a function
//! of the index too, so the hog needs no memory except the pages, and detects any page that is lost, stale, torn, or
//! another page's. The kinds of pages, in percent: 25 random, or PERCENT of them, 10 of one repeated word, 10 zero,
//! and the others text of random words (lz4 compresses these to about a quarter). Exit status 0 if all contents were
//! right; otherwise 1, after a line about the first wrong page. `spoil` changes one byte before the last check, to
//! show that the check detects it.

use std::process::ExitCode;

const PAGE_LEN: usize = 4096;
/// Each pass rewrites one page in this many, and reads as many.
const REWRITE_ONE_IN: u64 = 32;

/// A bijective scramble of 64 bits (the finaliser of splitmix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn seed(index: usize, pass: u64) -> u64 {
    mix(mix(index as u64 ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(pass))
}

/// Whether pass `pass` rewrites page `index`. Pass 0 fills them all.
fn rewrites(index: usize, pass: u64) -> bool {
    pass == 0 || seed(index, pass << 32).is_multiple_of(REWRITE_ONE_IN)
}

/// The pass that wrote page `index` last, seen from the end of `pass`.
fn written_in(index: usize, pass: u64) -> u64 {
    (0..=pass).rev().find(|&p| rewrites(index, p)).unwrap_or(0)
}

/// Generates the contents of page `index` as `pass` writes them. The kind of a page changes from pass to pass.
fn fill(page: &mut [u8], index: usize, pass: u64, random_percent: u64) {
    let mut state = seed(index, pass);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(state)
    };
    let kind = next() % 100;
    let words = page.chunks_exact_mut(8);
    match kind {
        _ if kind < random_percent => words.for_each(|w| w.copy_from_slice(&next().to_le_bytes())),
        0..80 => text(page, index, next),
        80..90 => {
            let word = next().to_le_bytes();
            words.for_each(|w| w.copy_from_slice(&word));
        }
        _ => page.fill(0),
    }
}

/// Generates text of words from a small vocabulary, and the page's index in some places, so that no two pages are
/// equal.
fn text(page: &mut [u8], index: usize, mut next: impl FnMut() -> u64) {
    const WORDS: [&[u8; 16]; 8] = [
        b"the compression ",
        b"of a page that  ",
        b"is swapped out  ",
        b"\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0",
        b"0x00007f0000001 ",
        b"memory pressure ",
        b"\xff\xff\xff\xff\0\0\0\0\x10\0\0\0\0\0\0\0",
        b"comes back whole",
    ];
    let mut bits = 0;
    for (i, part) in page.chunks_exact_mut(16).enumerate() {
        if i % 8 == 0 {
            bits = next();
            part[..8].copy_from_slice(&(index as u64).to_le_bytes());
            part[8..].copy_from_slice(&bits.to_le_bytes());
            continue;
        }
        part.copy_from_slice(WORDS[(bits % 8) as usize]);
        bits >>= 3;
    }
}

struct Hog<'a> {
    /// Aligned to pages of the machine, so that the pages that the kernel swaps are those of `fill`.
    memory: &'a mut [u8],
    expected: [u8; PAGE_LEN],
    /// The share of random pages, at most 80.
    random_percent: u64,
}

impl Hog<'_> {
    fn page_count(&self) -> usize {
        self.memory.len() / PAGE_LEN
    }

    fn write(&mut self, index: usize, pass: u64) {
        fill(&mut self.memory[index * PAGE_LEN..][..PAGE_LEN], index, pass, self.random_percent);
    }

    /// Compares a page with the contents that the last pass up to `pass` has written.
    fn check(&mut self, index: usize, pass: u64) -> Result<(), String> {
        let pass = written_in(index, pass);
        fill(&mut self.expected, index, pass, self.random_percent);
        let page = &self.memory[index * PAGE_LEN..][..PAGE_LEN];
        match page.iter().zip(&self.expected).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => Err(format!(
                "page {index} (written in pass {pass}) is wrong from byte {at}: {:02x?}, expected {:02x?}",
                &page[at..(at + 16).min(PAGE_LEN)],
                &self.expected[at..(at + 16).min(PAGE_LEN)],
            )),
        }
    }

    /// Runs one pass: rewrites some pages and checks others, in an order without locality.
    fn run_pass(&mut self, pass: u64) -> Result<(), String> {
        let count = self.page_count();
        // A prime, so that this stride visits every page unless the number of pages is a multiple of it.
        let stride = 611_953;
        let mut index = (mix(pass) % count as u64) as usize;
        for _ in 0..count {
            if rewrites(index, pass) {
                self.write(index, pass);
            } else if seed(index, !pass).is_multiple_of(REWRITE_ONE_IN) {
                self.check(index, pass - 1)?;
            }
            index = (index + stride) % count;
        }
        Ok(())
    }

    fn run(&mut self, passes: u64, spoil: bool) -> Result<(), String> {
        for index in 0..self.page_count() {
            self.write(index, 0);
            if index % (self.page_count() / 8) == 0 {
                println!("hog: filled {} MiB", (index * PAGE_LEN) >> 20);
            }
        }
        for pass in 1..=passes {
            println!("hog: pass {pass}");
            self.run_pass(pass)?;
        }
        println!("hog: checking all");
        if spoil && let Some(byte) = self.memory.last_mut() {
            *byte ^= 1;
        }
        (0..self.page_count()).try_for_each(|index| self.check(index, passes))
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<u64>().ok());
    let (Some(mib), Some(passes)) = (number(0), number(1)) else {
        eprintln!("usage: hog MIB PASSES [random=PERCENT] [spoil]");
        return ExitCode::from(2);
    };
    let options = &args[2..];
    let spoil = options.iter().any(|a| a == "spoil");
    let random = options.iter().find_map(|a| a.strip_prefix("random=")?.parse().ok());
    let random_percent = random.unwrap_or(25).min(80);
    let len_bytes = (mib as usize) << 20;
    let mut allocated = vec![0; len_bytes + PAGE_LEN];
    let start = allocated.as_ptr().align_offset(PAGE_LEN);
    let mut hog =
        Hog { memory: &mut allocated[start..start + len_bytes], expected: [0; PAGE_LEN], random_percent };
    match hog.run(passes, spoil) {
        Ok(()) => {
            println!("hog: all {} pages are right", hog.page_count());
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            println!("hog: {wrong}");
            ExitCode::FAILURE
        }
    }
}
