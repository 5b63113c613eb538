//! A million random steps against plain bytes: writes, reads, discards, passes, maintenance, at limits and with
//! little space on the backing, in both layouts. One thread with a seed: a failure reports its step.

use crate::support::{PlainBytes, Random, page};
use pagefold_backing::MemoryBacking;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::writeback::{LayoutKind, Selection, Which, WritebackConfig, WritebackError};
use pagefold_store::{MemLimit, Store, StoreConfig};
use std::ops::ControlFlow;
use std::sync::Arc;

const PAGES: u64 = 700;
const LEN: u64 = PAGES * PAGE_SIZE as u64;

struct Run {
    store: Store,
    model: PlainBytes,
    random: Random,
    written_back_max: u64,
}

impl Run {
    fn new(seed: u64, layout: LayoutKind, backing_len: usize) -> Self {
        let config = StoreConfig { mem_limit: MemLimit::Off, ..StoreConfig::new(LEN) };
        let mut store = Store::new(config).unwrap();
        let backing = Arc::new(MemoryBacking::new(backing_len));
        store.attach(WritebackConfig { backing, layout }).unwrap();
        Run { store, model: PlainBytes(vec![0; LEN as usize]), random: Random(seed), written_back_max: 0 }
    }

    /// A range, often whole pages.
    fn range(&mut self) -> (u64, u64) {
        let random = &mut self.random;
        let (offset, len) = match random.below(4) {
            0 => (random.below(LEN), random.below(9000)),
            1 => (random.below(PAGES) * 4096, random.below(40) * 4096),
            _ => (random.below(PAGES) * 4096, 4096),
        };
        (offset, len.min(LEN - offset))
    }

    fn selection(&mut self) -> Selection {
        let random = &mut self.random;
        match random.below(6) {
            0 => Selection::of(Which::All),
            1 => Selection::of(Which::Huge),
            2 => Selection::of(Which::Idle),
            3 => Selection::of(Which::HugeIdle),
            _ => {
                let (a, b) = (random.below(PAGES), random.below(PAGES));
                Selection::pages(PageIndex(a.min(b)), PageIndex(a.max(b))).unwrap()
            }
        }
    }

    fn write_back(&mut self) {
        let selection = self.selection();
        let mut calls_left = if self.random.below(8) == 0 { self.random.below(3) } else { u64::MAX };
        let mut on_progress = |_: &_| {
            calls_left = calls_left.saturating_sub(1);
            if calls_left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let report = self.store.write_back(&selection, &mut on_progress).unwrap();
        assert!(
            matches!(
                report.error,
                None | Some(WritebackError::Full | WritebackError::Budget | WritebackError::Stopped)
            ),
            "{report:?}"
        );
        assert_eq!((report.failed_pages, report.changed_pages), (0, 0));
    }

    fn set(&mut self) {
        let settings = self.store.writeback().unwrap().settings();
        match self.random.below(4) {
            0 => assert!(
                settings.set_writeback_batch_size([1, 2, 32, 100, 1024][self.random.below(5) as usize])
            ),
            1 => settings.promote.store(self.random.below(2) == 0),
            2 => settings.writeback_limit_enabled.store(self.random.below(3) == 0),
            _ => settings.writeback_limit.store(self.random.below(1000)),
        }
    }

    fn read(&mut self) {
        let (offset, len) = self.range();
        let mut got = vec![0xee; len as usize];
        self.store.read(offset, &mut got).unwrap();
        assert!(got == self.model.0[offset as usize..(offset + len) as usize], "bytes {offset}+{len}");
    }

    fn write(&mut self) {
        let (offset, len) = self.range();
        let data: Vec<u8> = (0..len.div_ceil(4096)).flat_map(|_| page(self.random.next() % 64)).collect();
        let data = &data[..len as usize];
        self.store.write(offset, data).unwrap();
        self.model.write(offset, data);
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..45 => self.read(),
            45..80 => self.write(),
            80..86 => {
                let (offset, len) = self.range();
                self.store.discard(offset, len).unwrap();
                self.model.discard(offset, len);
            }
            86..88 => {
                let (offset, len) = self.range();
                self.store.write_zeroes(offset, len).unwrap();
                self.model.write_zeroes(offset, len);
            }
            88..91 => self.store.mark_idle(0),
            91..94 => self.store.run_maintenance(true),
            94..96 => self.set(),
            96 => {
                self.store.compact();
            }
            _ => self.write_back(),
        }
    }

    fn check(&mut self) {
        let stats = self.store.writeback().unwrap().stats();
        self.written_back_max = self.written_back_max.max(stats.bd.bd_count);
        assert_eq!((stats.unreadable_pages, stats.corrupt_pages, stats.read_repeats), (0, 0, 0));
        assert!(stats.written_back_bytes <= stats.capacity_bytes - stats.free_bytes);
        let held = self.store.stats().mm.orig_data_size / 4096;
        assert!(stats.bd.bd_count <= held);
    }

    /// Discards all pages and checks that no block, segment or counter leaks.
    fn end(mut self) {
        let settings = self.store.writeback().unwrap().settings();
        settings.writeback_limit_enabled.store(false);
        self.store.write_back(&Selection::of(Which::All), &mut |_| ControlFlow::Continue(())).unwrap();
        self.check();
        assert!(
            self.written_back_max > PAGES / 3,
            "the test wrote back too little: {}",
            self.written_back_max
        );
        let mut all = vec![0; LEN as usize];
        self.store.read(0, &mut all).unwrap();
        assert!(all == self.model.0);
        self.store.discard(0, LEN).unwrap();
        // Heads and cached read-ahead keep a segment each.
        let stats = self.store.writeback().unwrap().stats();
        assert_eq!((stats.bd.bd_count, stats.written_back_bytes), (0, 0));
        let in_use_max = 6 * (256 << 10);
        assert!(stats.free_bytes + in_use_max >= stats.capacity_bytes, "{stats:?}");
        assert_eq!(self.store.stats().mm.compr_data_size, 0);
    }
}

fn run(seed: u64, layout: LayoutKind, backing_len: usize, steps: u64) {
    let mut model = Run::new(seed, layout, backing_len);
    for step in 0..steps {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.step()));
        if let Err(panic) = done {
            eprintln!("seed {seed}, step {step}");
            std::panic::resume_unwind(panic);
        }
        if step % 4096 == 0 {
            model.check();
        }
    }
    let stats = model.store.writeback().unwrap().stats();
    eprintln!("{layout:?} {backing_len}: {stats:?}");
    model.end();
}

#[test]
fn log_with_space() {
    run(1, LayoutKind::Log, (1 << 20) + 12 * (256 << 10), 250_000);
}

#[test]
fn log_with_little_space() {
    run(2, LayoutKind::Log, (1 << 20) + 6 * (256 << 10), 250_000);
}

#[test]
fn blocks_with_space() {
    run(3, LayoutKind::Blocks, (1 << 20) + 800 * 4096, 250_000);
}

#[test]
fn blocks_with_little_space() {
    run(4, LayoutKind::Blocks, (1 << 20) + 384 * 4096, 250_000);
}
