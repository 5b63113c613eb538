//! The operations during which a process dies, each with a store in which it has something to do.

use crate::support::rig::{SEGMENT_LEN, raw_page, segments, soft_page};
use crate::support::{Random, page as any_page};
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_store::writeback::{LayoutKind, Selection, Which};
use pagefold_store::{CodecSpec, MemLimit, Store, StoreConfig};
use std::ops::{ControlFlow, Range};

const PAGE: u64 = PAGE_SIZE as u64;
/// The page that most operations change.
pub const TARGET: u64 = 20;
/// Pages in a segment of the log that do not compress.
const PER_SEGMENT: u64 = 63;

/// An operation on a store.
pub struct Scenario {
    pub name: String,
    /// Pages of the store.
    pub page_count: u64,
    /// The layout and the length of its backing, if it has one.
    pub backing: Option<(LayoutKind, usize)>,
    pub mem_limit: MemLimit,
    /// The pages that the operation may change.
    pub touched: Range<u64>,
    /// Whether only the full tier runs it.
    pub is_long: bool,
    setup: Box<dyn Fn(&Store)>,
    operation: Box<dyn Fn(&Store)>,
}

impl Scenario {
    fn new(
        name: impl Into<String>,
        setup: impl Fn(&Store) + 'static,
        operation: impl Fn(&Store) + 'static,
    ) -> Self {
        Scenario {
            name: name.into(),
            page_count: 512,
            backing: None,
            mem_limit: MemLimit::Off,
            touched: 0..0,
            is_long: false,
            setup: Box::new(setup),
            operation: Box::new(operation),
        }
    }

    /// The scenario with other pages that the operation may change.
    pub fn touching(self, touched: Range<u64>) -> Self {
        Scenario { touched, ..self }
    }

    fn on(self, layout: LayoutKind, segment_count: u64) -> Self {
        Scenario { backing: Some((layout, segments(segment_count))), ..self }
    }

    fn limited_to(self, frames: u64) -> Self {
        Scenario { mem_limit: MemLimit::Bytes(frames * PAGE), ..self }
    }

    /// The configuration of the store.
    pub fn config(&self) -> StoreConfig {
        StoreConfig {
            mem_limit: self.mem_limit,
            cpu_count: 1,
            further_codecs: [Some(CodecSpec::named("zstd")), None, None],
            ..StoreConfig::new(self.page_count * PAGE)
        }
    }

    /// Fills the store.
    pub fn set_up(&self, store: &Store) {
        store.writeback().iter().for_each(|writeback| writeback.settings().promote.store(false));
        (self.setup)(store);
    }

    /// Runs the operation.
    pub fn run(&self, store: &Store) {
        (self.operation)(store);
    }
}

/// The states of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Empty,
    SameFilled,
    Short,
    Folded,
    Raw,
    InLog,
    InBlocks,
}

impl Form {
    const ALL: [Form; 7] =
        [Form::Empty, Form::SameFilled, Form::Short, Form::Folded, Form::Raw, Form::InLog, Form::InBlocks];

    fn layout(self) -> Option<LayoutKind> {
        match self {
            Form::InLog => Some(LayoutKind::Log),
            Form::InBlocks => Some(LayoutKind::Blocks),
            _ => None,
        }
    }

    /// Contents that a write turns into this form.
    fn page(self, index: u64, version: u64) -> Page {
        match self {
            Form::Empty => [0; PAGE_SIZE],
            Form::SameFilled => same_filled(index, version),
            Form::Short => short_page(index, version),
            Form::Folded | Form::InLog | Form::InBlocks => soft_page(index, version),
            Form::Raw => raw_page(index, version),
        }
    }
}

fn same_filled(index: u64, version: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    page.chunks_mut(8)
        .for_each(|word| word.copy_from_slice(&(index << 32 | version | 1 << 63).to_le_bytes()));
    page
}

fn short_page(index: u64, version: u64) -> Page {
    let mut page = [7; PAGE_SIZE];
    page[..8].copy_from_slice(&(index << 32 | version).to_le_bytes());
    page
}

/// Text that zstd makes clearly smaller than lz4 does.
fn text(index: u64) -> Page {
    let words = ["page ", "slot ", "frame ", "store ", "backing ", "memory ", "codec ", "stream "];
    let mut random = Random(index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let text: Vec<u8> = (0..2000).flat_map(|_| words[random.below(8) as usize].bytes()).collect();
    text[..PAGE_SIZE].try_into().unwrap()
}

fn write(store: &Store, index: u64, page: &Page) {
    store.write(index * PAGE, page).unwrap();
}

fn discard(store: &Store, pages: Range<u64>) {
    store.discard(pages.start * PAGE, (pages.end - pages.start) * PAGE).unwrap();
}

fn write_back(store: &Store, pages: Range<u64>) {
    let selection = Selection::pages(PageIndex(pages.start), PageIndex(pages.end - 1)).unwrap();
    let report = store.write_back(&selection, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.error, None);
}

fn write_back_all(store: &Store) {
    let selection = Selection::of(Which::All);
    let report = store.write_back(&selection, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.error, None);
}

/// Fills the store so that the page [`TARGET`] has a form, and that the next object freed lets another one move: each
/// class has as many holes as it may.
pub fn around(store: &Store, form: Form) {
    write(store, TARGET, &form.page(TARGET, 0));
    for (at, form) in (0..).step_by(6).zip([Form::Short, Form::Folded, Form::Raw]) {
        (at..at + 6).for_each(|index| write(store, index, &form.page(index, 0)));
        [at, at + 2].into_iter().for_each(|index| discard(store, index..index + 1));
    }
    (18..20).for_each(|index| write(store, index, &Form::SameFilled.page(index, 0)));
    if form.layout().is_some() {
        write_back(store, TARGET..TARGET + 1);
    }
}

/// An operation on [`TARGET`], which has a form before.
fn change(name: &str, form: Form, operation: impl Fn(&Store) + 'static) -> Scenario {
    let scenario =
        Scenario::new(format!("{name} over {form:?}"), move |store| around(store, form), operation);
    let scenario = scenario.touching(TARGET..TARGET + 1);
    match form.layout() {
        Some(layout) => scenario.on(layout, 6),
        None => scenario,
    }
}

/// All operations on one page, over each form.
fn changes() -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for old in Form::ALL {
        for new in [Form::Empty, Form::SameFilled, Form::Short, Form::Folded, Form::Raw] {
            let page = new.page(TARGET, 1);
            scenarios.push(change(&format!("write {new:?}"), old, move |store| write(store, TARGET, &page)));
        }
        scenarios.push(change("discard", old, |store| discard(store, TARGET..TARGET + 1)));
        scenarios.push(change("write_zeroes", old, |store| store.write_zeroes(TARGET * PAGE, PAGE).unwrap()));
        scenarios.push(change("write_same_filled", old, |store| {
            store.write_same_filled(PageIndex(TARGET), 77).unwrap();
        }));
        scenarios.push(change("write a part", old, |store| {
            store.write(TARGET * PAGE + 1000, &raw_page(TARGET, 1)[..700]).unwrap();
        }));
    }
    scenarios
}

/// Fills a store to its limit.
fn fill(page: fn(u64, u64) -> Page) -> impl Fn(&Store) {
    move |store| {
        let stored = (0..).take_while(|index| store.write(index * PAGE, &page(*index, 0)).is_ok()).count();
        assert!((3..100).contains(&stored), "{stored}");
    }
}

/// Writes at the memory limit, which overwrite objects in their places or move to shorter ones.
fn overwrites() -> Vec<Scenario> {
    const FRAMES: u64 = 8;
    let over = |name: &str, old: fn(u64, u64) -> Page, new: fn(u64, u64) -> Page| {
        let scenario = Scenario::new(name, fill(old), move |store| write(store, 2, &new(2, 1)));
        scenario.touching(2..3).limited_to(FRAMES)
    };
    // Shorter than a soft page by so little that it has the same size class.
    fn little_shorter(index: u64, version: u64) -> Page {
        let mut page = soft_page(index, version);
        page[1295..1300].fill(0);
        page
    }
    let refused = Scenario::new("a refused write of a new page", fill(raw_page), |store| {
        assert!(store.write(100 * PAGE, &raw_page(100, 1)).is_err());
    });
    let refused_longer = Scenario::new("a refused write of a longer page", fill(soft_page), |store| {
        assert!(store.write(2 * PAGE, &raw_page(2, 1)).is_err());
    });
    let part = Scenario::new("a part over a raw page at the limit", fill(raw_page), |store| {
        store.write(2 * PAGE + 500, &[5; 900]).unwrap();
    });
    vec![
        over("raw over raw at the limit", raw_page, raw_page),
        over("folded over raw at the limit", raw_page, soft_page),
        over("short over raw at the limit", raw_page, short_page),
        over("same-filled over raw at the limit", raw_page, same_filled),
        over("folded over folded at the limit", soft_page, soft_page),
        over("folded over a little longer at the limit", soft_page, little_shorter),
        over("short over folded at the limit", soft_page, short_page),
        refused.limited_to(FRAMES),
        refused_longer.limited_to(FRAMES),
        part.touching(2..3).limited_to(FRAMES),
    ]
}

/// Operations on many pages.
fn passes() -> Vec<Scenario> {
    let mixed = |store: &Store| (0..24).for_each(|index| write(store, index, &any_page(index + 1)));
    let texts = |store: &Store| {
        (0..8).for_each(|index| write(store, index, &text(index)));
        (8..11).for_each(|index| write(store, index, &raw_page(index, 0)));
    };
    let holes = move |store: &Store| {
        (0..40).for_each(|index| write(store, index, &any_page(index)));
        (0..40)
            .filter(|index| index % 8 >= 2 && index % 5 < 2)
            .for_each(|index| discard(store, index..index + 1));
    };
    let many = |store: &Store| {
        (0..1100).for_each(|index| write(store, index, &raw_page(index, 0)));
        // So many free frames as are kept ready, or a few less.
        discard(store, 0..1000);
    };
    // All ready frames have bytes of pages.
    let used_frames = |store: &Store| {
        (0..60).for_each(|index| write(store, index, &raw_page(index, 0)));
        discard(store, 0..60);
    };
    let written = |store: &Store| {
        (0..6).for_each(|index| write(store, index, &raw_page(index, 0)));
        (6..12).for_each(|index| write(store, index, &soft_page(index, 0)));
        write_back(store, 0..12);
        (12..18).for_each(|index| write(store, index, &soft_page(index, 0)));
    };
    let mut scenarios = vec![
        Scenario::new("the first write", |_| {}, |store| write(store, 3, &soft_page(3, 1))).touching(3..4),
        Scenario::new("the first write to a chunk", mixed, |store| write(store, 300, &soft_page(300, 1)))
            .touching(300..301),
        Scenario::new("the first write to a chunk, in a used frame", used_frames, |store| {
            write(store, 300, &soft_page(300, 1));
        })
        .touching(300..301),
        Scenario::new("a write of four pages", mixed, |store| {
            let pages = [2, 3, 4, 5].map(|form| any_page(form + 400));
            store.write(5 * PAGE, pages.as_flattened()).unwrap();
        })
        .touching(5..9),
        Scenario::new("a discard of all pages", mixed, |store| discard(store, 0..512)).touching(0..24),
        Scenario::new("compact", holes, |store| drop(store.compact().to_string())),
        Scenario::new("recompress", texts, recompress),
        Scenario::new("recompress at the limit", fill(|index, _| text(index)), recompress).limited_to(16),
        Scenario::new("read", mixed, |store| (0..24).for_each(|index| read(store, index))),
        Scenario {
            is_long: true,
            ..Scenario::new("more free frames than are kept", many, |store| {
                discard(store, 1000..1100);
                assert!(store.stats().memory.ready < 700 * PAGE, "no frames were returned");
            })
        }
        .touching(1000..1100)
        .of_pages(1536),
    ];
    for layout in [LayoutKind::Log, LayoutKind::Blocks] {
        let name = |name: &str| format!("{name} in {layout:?}");
        scenarios.extend([
            Scenario::new(name("write back"), mixed, write_back_all).on(layout, 6),
            Scenario::new(name("write back again"), written, write_back_all).on(layout, 6),
            Scenario::new(name("read from the backing"), written, |store| {
                (0..12).for_each(|index| read(store, index));
            })
            .on(layout, 6),
            Scenario::new(name("promote"), written, |store| {
                store.writeback().unwrap().settings().promote.store(true);
                (3..9).chain(3..9).for_each(|index| read(store, index));
                assert!(store.writeback().unwrap().stats().promoted_pages > 4);
            })
            .on(layout, 6),
            Scenario::new(name("mark idle"), written, |store| {
                store.mark_idle(0);
            })
            .on(layout, 6),
            Scenario::new(name("a discard of all pages"), written, |store| discard(store, 0..512))
                .on(layout, 6)
                .touching(0..18),
        ]);
    }
    scenarios.push(cleaning());
    scenarios
}

impl Scenario {
    fn of_pages(self, page_count: u64) -> Self {
        Scenario { page_count, ..self }
    }
}

/// Cleaning of one segment of a log that is nearly full.
fn cleaning() -> Scenario {
    let setup = |store: &Store| {
        for index in 0..4 * PER_SEGMENT {
            write(store, index, &raw_page(index, 0));
        }
        write_back_all(store);
        (0..2 * PER_SEGMENT)
            .filter(|index| index % 3 != 0)
            .for_each(|index| discard(store, index..index + 1));
        assert_eq!(store.writeback().unwrap().stats().free_bytes, 2 * SEGMENT_LEN);
    };
    let clean = |store: &Store| {
        store.run_maintenance(true);
        assert_eq!(store.writeback().unwrap().stats().cleaned_segments, 1);
        // The cleaned segment is discarded on the medium.
        store.run_maintenance(false);
    };
    Scenario::new("clean", setup, clean).on(LayoutKind::Log, 6)
}

fn recompress(store: &Store) {
    let report = store.recompress(&"".parse().unwrap(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.recompressed_pages > 4);
}

fn read(store: &Store, index: u64) {
    let mut page = [0; PAGE_SIZE];
    store.read(index * PAGE, &mut page).unwrap();
}

/// All scenarios, by groups.
pub fn groups() -> [Vec<Scenario>; 3] {
    [changes(), overwrites(), passes()]
}

/// The scenario of a name.
pub fn named(name: &str) -> Scenario {
    groups().into_iter().flatten().find(|scenario| scenario.name == name).unwrap()
}
