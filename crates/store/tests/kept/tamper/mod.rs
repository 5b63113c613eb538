//! Memory with changed bytes: recovery refuses it, loses the pages that it cannot have, or finds them; it never crashes.
//!
//! `PAGEFOLD_TAMPER` is the number of changed memories, and `PAGEFOLD_TAMPER_SEED` the first seed.

mod parts;

use crate::child::{self, Shared, file_of};
use crate::faults::caught;
use crate::image::Image;
use crate::support::rig::{raw_page, segments, soft_page};
use crate::support::{Random, page as any_page};
use crate::verify::{Contents, read_all};
use pagefold_backing::{Backing, ByteSource, MemoryBacking};
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::writeback::{LayoutKind, Selection, WritebackConfig};
use pagefold_store::{CodecSpec, MemLimit, Store, StoreConfig, StoreError};
use pagefold_sys::sharedmem::SharedMemory;
use parts::{Part, Parts};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGES: u64 = 600;
/// The longest time for one changed memory.
const TIME_MAX: Duration = Duration::from_secs(20);

fn config() -> StoreConfig {
    StoreConfig {
        mem_limit: MemLimit::Off,
        cpu_count: 1,
        further_codecs: [Some(CodecSpec::named("zstd")), None, None],
        ..StoreConfig::new(PAGES * PAGE_SIZE as u64)
    }
}

/// A store of which a process has died: its memory, its medium, and its contents.
struct Dead {
    memory: Image,
    medium: Arc<MemoryBacking>,
    contents: Contents,
    parts: Parts,
    /// The words of each kind of part.
    words: Vec<Vec<u64>>,
}

impl Dead {
    fn new() -> Self {
        let memory = SharedMemory::new().unwrap();
        let mut store = Store::new_kept(config(), memory.try_clone().unwrap()).unwrap();
        let medium = Arc::new(MemoryBacking::new(segments(6)));
        store.attach(WritebackConfig { backing: medium.clone(), layout: LayoutKind::Log }).unwrap();
        let write = |index: u64, page: &[u8]| store.write(index * PAGE_SIZE as u64, page).unwrap();
        (0..60).for_each(|index| write(index, &any_page(index + 1)));
        (60..80).chain(300..310).for_each(|index| write(index, &soft_page(index, 0)));
        (80..90).for_each(|index| write(index, &raw_page(index, 0)));
        let on = &mut |_: &_| ControlFlow::Continue(());
        store.write_back(&Selection::pages(PageIndex(5), PageIndex(15)).unwrap(), on).unwrap();
        store.recompress(&"max_pages=20".parse().unwrap(), &mut |_| ControlFlow::Continue(())).unwrap();
        (0..90).filter(|index| index % 9 == 4).for_each(|index| {
            store.discard(index * PAGE_SIZE as u64, PAGE_SIZE as u64).unwrap();
        });
        let image = Image::of(&file_of(&memory));
        store.writeback().unwrap().settings().promote.store(false);
        let parts = Parts::of(&image, PAGES);
        let mut words = BTreeMap::<String, Vec<u64>>::new();
        let all = image.pages.iter().flat_map(|page| (page.0..page.0 + PAGE_SIZE as u64).step_by(8));
        for at in all {
            let part = parts.part(at);
            // Also an empty slot, and an unused link, but not as many of these.
            let is_empty = (0..8).all(|i| image.byte(at + i) == 0);
            if !is_empty || part == Part::Header || at % 320 == 0 {
                words.entry(part.kind()).or_default().push(at);
            }
        }
        let words = words.into_values().collect();
        Dead { memory: image, medium, contents: read_all(&store), parts, words }
    }
}

/// A change of some bytes.
struct Change {
    text: String,
    image: Image,
    /// The parts that differ then.
    parts: HashSet<Part>,
}

impl Change {
    /// The change of a seed.
    fn of(dead: &Dead, seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..3).for_each(|_| {
            random.next();
        });
        let mut image = dead.memory.clone();
        let count = 1 + random.below(3) * random.below(2);
        let texts: Vec<_> = (0..count).map(|_| change(&mut image, &dead.words, &mut random)).collect();
        let mut parts = HashSet::new();
        for ((offset, before), (_, after)) in dead.memory.pages.iter().zip(&image.pages) {
            let differing = (0..PAGE_SIZE).filter(|at| before.bytes[*at] != after.bytes[*at]);
            parts.extend(differing.map(|at| dead.parts.part(offset + at as u64)));
        }
        Change { text: texts.join(", "), image, parts }
    }

    fn changes(&self, is: impl Fn(&Part) -> bool) -> bool {
        self.parts.iter().any(is)
    }
}

/// Changes one or two words at random, and returns what was done.
fn change(image: &mut Image, words: &[Vec<u64>], random: &mut Random) -> String {
    // As often in a small part as in a large one.
    let list = &words[random.below(words.len() as u64) as usize];
    let word = |random: &mut Random| list[random.below(list.len() as u64) as usize];
    let at = word(random);
    let mut bytes: [u8; 8] = std::array::from_fn(|i| image.byte(at + i as u64));
    match random.below(7) {
        0 | 1 => {
            let bit = random.below(64);
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
        }
        2 => bytes = [0; 8],
        3 => bytes = random.next().to_le_bytes(),
        4 => bytes = (u64::from_le_bytes(bytes).wrapping_add(random.below(17)).wrapping_sub(8)).to_le_bytes(),
        5 => {
            let from = word(random);
            bytes = std::array::from_fn(|i| image.byte(from + i as u64));
        }
        _ => {
            // Two neighbouring words, as a slot has.
            let (at, from) = (at & !15, word(random) & !15);
            let both: [u8; 16] = std::array::from_fn(|i| image.byte(from + i as u64));
            image.set(at, &both);
            return format!("{at:#x} gets two words of {from:#x}");
        }
    }
    image.set(at, &bytes);
    format!("{at:#x} gets {:#x}", u64::from_le_bytes(bytes))
}

/// How a recovery ended, for the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Refused,
    Lost,
    Complete,
}

/// Recovers a changed memory, checks that it is refused or that each page has its contents or is an error, and uses the
/// store.
fn check(dead: &Dead, change: &Change) -> Outcome {
    let mut medium = vec![0; dead.medium.len_bytes() as usize];
    dead.medium.read_at(0, &mut medium).unwrap();
    let backing = MemoryBacking::new(medium.len());
    backing.write_at(0, &medium).unwrap();
    let memory = change.image.to_memory();
    let (store, recovered) = match Store::recover(config(), memory, Some(Arc::new(backing))) {
        Ok(recovered) => recovered,
        Err(StoreError::Unrecoverable(_) | StoreError::SetUp(_) | StoreError::Attach(_)) => {
            return Outcome::Refused;
        }
        Err(error) => panic!("refused as {error:?}"),
    };
    let is_header = change.changes(|part| *part == Part::Header);
    assert!(!is_header, "a changed header was not refused");
    store.writeback().unwrap().settings().promote.store(false);
    let mut failed = 0;
    for index in 0..PAGES {
        let mut page = [0xee; PAGE_SIZE];
        // A page whose slot, bytes, note or directory changed may be anything.
        let is_affected = change.changes(|part| match part {
            Part::Slot(of) | Part::Bytes(of) => *of == index,
            Part::Notes | Part::Directory => true,
            _ => false,
        });
        match store.read(index * PAGE_SIZE as u64, &mut page) {
            Ok(()) if is_affected => {
                let is_other = |other: &[u8; PAGE_SIZE]| page == *other && page[..8] != page[8..16];
                let is_own = page == *dead.contents[index as usize];
                let others = dead.contents.iter().any(|other| is_other(other));
                assert!(is_own || !others, "page {index} reads as another page");
            }
            Ok(()) => assert!(page == *dead.contents[index as usize], "page {index} reads as other bytes"),
            Err(StoreError::CorruptRecord { .. }) if change.changes(|part| *part == Part::Sequences) => {}
            Err(_) if is_affected => {}
            Err(_) => failed += 1,
        }
    }
    assert!(failed <= recovered.lost_pages, "{failed} pages are errors, {} are lost", recovered.lost_pages);
    check_use(&store);
    if recovered.lost_pages > 0 { Outcome::Lost } else { Outcome::Complete }
}

/// Uses all that recovery has made: lists of holes and frames, and the backing.
fn check_use(store: &Store) {
    store.compact();
    let write = |index: u64, page: &[u8]| store.write(index * PAGE_SIZE as u64, page).unwrap();
    (0..PAGES).step_by(3).for_each(|index| write(index, &soft_page(index, 5)));
    (0..PAGES).step_by(7).for_each(|index| write(index, &raw_page(index, 5)));
    let on = &mut |_: &_| ControlFlow::Continue(());
    store.write_back(&Selection::pages(PageIndex(0), PageIndex(100)).unwrap(), on).unwrap();
    (0..PAGES).step_by(7).for_each(|index| {
        let mut page = [0; PAGE_SIZE];
        store.read(index * PAGE_SIZE as u64, &mut page).unwrap();
        assert!(page == raw_page(index, 5), "page {index} reads wrong after it was written again");
    });
    store.discard(0, store.len_bytes()).unwrap();
    let mm = store.stats().mm;
    assert_eq!((mm.orig_data_size, mm.compr_data_size, mm.mem_used_total), (0, 0, 0));
    assert_eq!((mm.same_pages, mm.huge_pages), (0, 0));
}

/// Not a test by itself: the process that recovers changed memories. `words` are the first seed and the number of seeds.
pub fn run_child(words: &str, shared: Shared) {
    let (first, count) = words.split_once(' ').unwrap();
    let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
    let dead = Dead::new();
    let (mut counts, mut faults) = (BTreeMap::<(Outcome, String), u64>::new(), Vec::new());
    for seed in first..first + count {
        shared.notes.write_all_at(&seed.to_le_bytes(), 0).unwrap();
        let change = Change::of(&dead, seed);
        match caught(|| check(&dead, &change)) {
            Ok(outcome) => {
                let kinds: BTreeSet<String> = change.parts.iter().map(Part::kind).collect();
                if kinds.len() <= 1 {
                    let kinds = kinds.into_iter().collect::<Vec<_>>().join("+");
                    *counts.entry((outcome, kinds)).or_default() += 1;
                }
            }
            Err(fault) => faults.push(format!("seed {seed}: {} {:?}: {fault}", change.text, change.parts)),
        }
    }
    eprintln!("changed memories: {counts:?}");
    let shown = faults.iter().take(30).cloned().collect::<Vec<_>>().join("\n");
    assert!(faults.is_empty(), "{} faults:\n{shown}", faults.len());
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn changed_memory_is_refused_or_loses_pages() {
    let is_full = std::env::var_os("PAGEFOLD_LONG").is_some();
    let count = number("PAGEFOLD_TAMPER").unwrap_or(if is_full { 5000 } else { 300 });
    let first = number("PAGEFOLD_TAMPER_SEED").unwrap_or(1);
    let shared = Shared::new();
    let mut child = child::start(&format!("tamper {first} {count}"), &shared);
    let seed = || {
        let mut seed = [0; 8];
        shared.notes.read_at(&mut seed, 0).unwrap();
        u64::from_le_bytes(seed)
    };
    let (mut last, mut since) = (0, Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if seed() != last {
            (last, since) = (seed(), Instant::now());
        }
        if since.elapsed() > TIME_MAX {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("seed {last}: the recovery does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{status}, at seed {}", seed());
}

/// A header of another store, or of another version, is refused with a reason.
#[test]
fn a_wrong_header_is_refused_with_its_reason() {
    let dead = Dead::new();
    let refused = |image: &Image, config: StoreConfig| {
        let backing = Some(dead.medium.clone() as Arc<dyn Backing>);
        match Store::recover(config, image.to_memory(), backing) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("not refused"),
        }
    };
    let with = |at: u64, bytes: &[u8]| {
        let mut image = dead.memory.clone();
        image.set(at, bytes);
        refused(&image, config())
    };
    assert!(with(0, b"x").contains("does not begin with the header"));
    assert!(with(8, &[9]).contains("version 9"));
    assert!(with(16, &[1, 2, 3]).contains("checksum"));
    assert!(with(24, &[1]).contains("checksum"));
    let other = StoreConfig::new((PAGES + 1) * PAGE_SIZE as u64);
    assert!(
        refused(&dead.memory, StoreConfig { len_bytes: other.len_bytes, ..config() }).contains("store of")
    );
    let shorter = |len_bytes| Image { len_bytes, ..dead.memory.clone() };
    for len_bytes in [0, 100, 4096, 12_287, 12_288, 20_000, dead.memory.len_bytes - 1_000_000] {
        let mut image = shorter(len_bytes);
        image.pages.retain(|page| page.0 + PAGE_SIZE as u64 <= len_bytes);
        let reason = refused(&image, config());
        assert!(reason.contains("too few") || reason.contains("header"), "{len_bytes}: {reason}");
    }
    let result = Store::recover(config(), dead.memory.to_memory(), None);
    assert!(matches!(result, Err(StoreError::Unrecoverable(_))), "the backing is missing");
}
