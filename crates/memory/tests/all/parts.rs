//! Parts of a region are read, written, pinned and discarded, by several threads, as plain bytes are.

use crate::support::{MODES, Random, bytes_of, each, noise, read, write};
use pagefold_memory::{Parts, PinnedSlice, RangeError, Region, RegionConfig};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Cursor, ErrorKind, Read, Seek};
use std::ops::Range;
use std::os::unix::fs::FileExt;

const PAGES: u64 = 1024;
const LIMIT: u64 = 128 * 4096;
const THREADS: usize = 4;
const STEPS: usize = 150;

fn region(mode: usize) -> Region {
    let (service, eviction) = MODES[mode];
    Region::new(RegionConfig { service, eviction, ..RegionConfig::new(PAGES * 4096, LIMIT) }).unwrap()
}

/// A file in memory.
fn file() -> File {
    File::from(rustix::fs::memfd_create("parts", MemfdFlags::CLOEXEC).unwrap())
}

/// Draws a part of so many bytes: any two places, a few bytes, or pages.
fn draw(random: &mut Random, len_bytes: usize) -> Range<usize> {
    let mut place = || random.below(len_bytes as u64 + 1) as usize;
    let (a, b) = (place(), place());
    match random.below(4) {
        0 => a..(a + b % 50).min(len_bytes),
        1 => a / 4096 * 4096..(a / 4096 + b % 40).min(len_bytes / 4096).max(a / 4096) * 4096,
        _ => a.min(b)..a.max(b),
    }
}

/// Fills a part with bytes that are drawn and compress to a half.
fn fill(bytes: &mut [u8], random: &mut Random) {
    for piece in bytes.chunks_mut(16) {
        let word = random.next().to_le_bytes();
        piece.iter_mut().zip(word).for_each(|(to, from)| *to = from);
    }
}

/// Makes one random call for a part of `bytes`, and does the same to the plain bytes of `twin`.
fn step(parts: Parts<'_>, bytes: &mut [u8], twin: &mut [u8], random: &mut Random, file: &mut File) {
    let part = draw(random, twin.len());
    let pinned = part.start..part.end.min(part.start + 16 * 4096);
    file.rewind().unwrap();
    match random.below(8) {
        0 => {
            fill(&mut twin[part.clone()], random);
            file.write_all_at(&twin[part.clone()], 0).unwrap();
            let done = parts.read_from(file.by_ref().take(part.len() as u64), &mut bytes[part.clone()]);
            assert_eq!(done.unwrap(), part.len());
        }
        1 => {
            // The input ends before the part does.
            let input = twin[..part.len() / 2].to_vec();
            let done = parts.read_from(Cursor::new(&input), &mut bytes[part.clone()]).unwrap();
            assert_eq!(done, input.len());
            twin[part.start..part.start + done].copy_from_slice(&input);
        }
        2 => {
            parts.write_to(&mut *file, &bytes[part.clone()]).unwrap();
            let mut copy = vec![0; part.len()];
            file.read_exact_at(&mut copy, 0).unwrap();
            assert!(copy == twin[part.clone()], "{part:?} was written");
        }
        6 => {
            let mut copy = vec![0xaa; part.len()];
            parts.read_part(&bytes[part.clone()], &mut copy).unwrap();
            assert!(copy == twin[part.clone()], "{part:?} was read");
        }
        7 => {
            fill(&mut twin[part.clone()], random);
            parts.write_part(&mut bytes[part.clone()], &twin[part.clone()]).unwrap();
            let mut copy = vec![0xaa; part.len()];
            parts.read_part(&bytes[part.clone()], &mut copy).unwrap();
            assert!(copy == twin[part.clone()], "{part:?} was written");
        }
        3 => {
            parts.discard(&mut bytes[part.clone()]).unwrap();
            twin[part.clone()].fill(0);
        }
        4 => {
            let mut pin = parts.pin_mut(&mut bytes[pinned.clone()]).unwrap();
            assert!(pin[..] == twin[pinned.clone()], "{pinned:?} was pinned");
            fill(&mut twin[pinned.clone()], random);
            file.write_all_at(&twin[pinned.clone()], 0).unwrap();
            file.read_exact_at(&mut pin, 0).unwrap();
        }
        _ => {
            let pin = parts.pin(&bytes[pinned.clone()]).unwrap();
            let again = parts.pin(&bytes[pinned.start + pinned.len() / 2..pinned.end]).unwrap();
            file.write_all_at(&pin, 0).unwrap();
            file.write_all_at(&again, (pinned.len() / 2) as u64).unwrap();
            let mut copy = vec![0; pinned.len()];
            file.read_exact_at(&mut copy, 0).unwrap();
            assert!(copy == twin[pinned.clone()], "{pinned:?} was pinned to be written");
        }
    }
    assert!(bytes[part.clone()] == twin[part.clone()], "{part:?}");
}

#[test]
fn threads_use_their_parts_as_plain_bytes() {
    each("threads_use_their_parts_as_plain_bytes", |mode| {
        let mut region = region(mode);
        // Not a multiple of a page: threads share pages, never bytes.
        let share = (PAGES as usize * 4096).div_ceil(THREADS) + 100;
        let (bytes, parts) = region.parts();
        std::thread::scope(|scope| {
            for (thread, mine) in bytes.chunks_mut(share).enumerate() {
                scope.spawn(move || {
                    let (mut random, mut file) = (Random::new((mode * THREADS + thread) as u64), file());
                    let mut twin = vec![0; mine.len()];
                    (0..STEPS).for_each(|_| step(parts, mine, &mut twin, &mut random, &mut file));
                    assert!(*mine == twin[..], "thread {thread}");
                });
            }
        });
        let stats = parts.stats();
        assert!(stats.eviction.folded > 0 && stats.faults.folded > 0, "nothing was folded: {stats:?}");
        assert!(stats.memory.resident_max <= LIMIT, "{stats:?}");
    });
}

#[test]
fn a_page_stays_until_the_last_of_its_pins_is_dropped() {
    each("a_page_stays_until_the_last_of_its_pins_is_dropped", |mode| {
        let region = region(mode);
        (0..PAGES).for_each(|page| write(&region, page, &noise(page)));
        let churn = |round: u64| (64..PAGES).for_each(|page| write(&region, page, &noise(page + round)));
        let file = file();
        let is_intact = |pin: &PinnedSlice<'_>, first: u64| {
            let mut copy = vec![0; pin.len()];
            file.write_all_at(pin, 0).unwrap();
            file.read_exact_at(&mut copy, 0).unwrap();
            let words = copy.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            words.eq((first..).flat_map(noise).take(copy.len() / 8))
        };
        let mut pins: Vec<_> = [0, 4, 8].map(|first| region.pin(bytes_of(first, 12)).unwrap()).into();
        for (round, first) in [0, 4, 8].into_iter().enumerate() {
            churn(round as u64);
            for (pin, first) in pins.iter().zip((first..).step_by(4)) {
                assert!(is_intact(pin, first), "round {round}, page {first}");
            }
            // Sent to another thread, where it is dropped.
            let pin = pins.remove(0);
            std::thread::scope(|scope| scope.spawn(|| drop(pin)).join().unwrap());
        }
        // SAFETY: no references into the region.
        unsafe { region.discard_shared(bytes_of(0, 20)) }.unwrap();
        assert!((0..20).all(|page| read(&region, page) == [0; 512]));
    });
}

#[test]
fn a_region_reads_and_writes_files_larger_than_its_limit() {
    each("a_region_reads_and_writes_files", |mode| {
        let mut region = region(mode);
        let mut input = vec![0; PAGES as usize * 4096 - 777];
        fill(&mut input, &mut Random::new(mode as u64));
        assert_eq!(region.read_from(Cursor::new(&input), 77..).unwrap(), input.len());
        assert!(
            region.bytes()[77..77 + input.len()] == input && region.bytes()[77 + input.len()..] == [0; 700]
        );
        let mut output = Vec::new();
        region.write_to(&mut output, 77..77 + input.len()).unwrap();
        assert!(output == input);
        region.pin_mut(..4096).unwrap()[..77].fill(5);
        assert!(region.bytes()[..77] == [5; 77] && region.bytes()[77..4096] == input[..4096 - 77]);
        region.discard(100..=5000).unwrap();
        assert!(region.bytes()[100..5001] == [0; 4901] && region.bytes()[5001] == input[5001 - 77]);
        assert!(region.stats().memory.resident_max <= LIMIT, "{:?}", region.stats());
    });
}

/// Returns one result after the other for calls of `read`.
struct Script(Vec<io::Result<usize>>);

impl Read for Script {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let result = self.0.remove(0);
        if let Ok(count) = result {
            buf.iter_mut().take(count).for_each(|byte| *byte = 9);
        }
        result
    }
}

#[test]
fn readers_that_fail_are_reported() {
    each("readers_that_fail_are_reported", |mode| {
        let mut region = region(mode);
        let interrupted = || Err(ErrorKind::Interrupted.into());
        let reader = Script(vec![Ok(5), interrupted(), interrupted(), Ok(6), Ok(0)]);
        assert_eq!(region.read_from(reader, 4090..9000).unwrap(), 11);
        assert_eq!(region.bytes()[4089..4102], [0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0]);
        let reader = Script(vec![Ok(100), Err(ErrorKind::ConnectionReset.into())]);
        let error = region.read_from(reader, 4096..9000).unwrap_err();
        assert_eq!((error.kind(), region.bytes()[4195]), (ErrorKind::ConnectionReset, 9));
        let error = region.read_from(Script(vec![Ok(101)]), ..100).unwrap_err();
        assert!(error.to_string().contains("more bytes"), "{error}");
    });
}

#[test]
fn parts_that_are_not_of_the_region_are_refused() {
    each("parts_that_are_not_of_the_region", |mode| {
        let (mut region, mut other) = (region(mode), region(mode));
        let len_bytes = region.len_bytes();
        let outside = region.read_from(io::empty(), 5..=len_bytes).unwrap_err();
        assert_eq!(outside.kind(), ErrorKind::InvalidInput);
        let inner = outside.get_ref().and_then(|inner| inner.downcast_ref());
        let expected = RangeError::OutOfRange { start: 5, end: len_bytes + 1, region_len_bytes: len_bytes };
        assert_eq!(inner, Some(&expected));
        let (_, parts) = region.parts();
        let (foreign, _) = other.parts();
        let error = Some(RangeError::NotInRegion { len_bytes: 10 });
        for bytes in [vec![1; 10].as_mut_slice(), &mut foreign[..10]] {
            assert_eq!(parts.pin(bytes).err(), error);
            assert_eq!(parts.pin_mut(bytes).err(), error);
            assert_eq!(parts.discard(bytes).err(), error);
            assert!(parts.read_from(io::empty(), bytes).is_err());
            assert!(parts.write_to(io::sink(), bytes).is_err());
        }
        assert!(parts.pin(&[]).unwrap().is_empty() && parts.discard(&mut []).is_ok());
    });
}
