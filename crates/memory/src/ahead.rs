//! Which neighbours to bring in with a page that was touched.
//!
//! Faults are sorted into a few *streams*: runs of faults at a constant distance. A stream's pages come in windows;
//! the page behind a window is left out, so that it faults if the stream goes on: that fault is how the window is
//! known to have been used, and makes the next one larger. A fault inside a window, or a stream that does not go
//! on, makes it smaller. A page that belongs to no stream comes alone and begins one.
//!
//! A window that its stream has gone on from is *behind* it. Its pages came from the store to be read once, in order, and
//! if memory is short they are the first to go ([`Ahead::next_behind`]): else a program that reads through more than is
//! resident would evict everything for pages of no more use, and find nothing when it begins again.
//!
//! There is no finer knowledge of use: the kernel does not tell a program which of its pages were read. All state
//! is a few words that are changed without locks; when two threads meet at one, one of the changes is lost, which
//! costs a guess.

mod behind;

use behind::Behind;
use crossbeam_utils::CachePadded;
use pagefold_page::PageIndex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Streams remembered.
const STREAMS: usize = 16;
/// Pages of a window, by a stream's level.
const WINDOWS: [u64; 4] = [1, 4, 16, WINDOW_MAX as u64];
/// The most pages of a window.
pub(crate) const WINDOW_MAX: usize = 32;
/// The longest distance that makes a stream, pages.
const STRIDE_MAX: i64 = 64;
/// Streams looked at for one to replace.
const VICTIMS: usize = 4;

/// The streams of a region.
pub(crate) struct Ahead {
    streams: CachePadded<[AtomicU64; STREAMS]>,
    next_victim: AtomicUsize,
    behind: Behind,
    brought: CachePadded<AtomicU64>,
    used: AtomicU64,
}

/// What to bring in: the page touched and so many at this distance from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Pages, the touched one included; at least 1.
    pub(crate) pages: u64,
    /// Pages from one to the next; not 0.
    pub(crate) stride: i64,
}

impl Window {
    pub(crate) const ALONE: Window = Window { pages: 1, stride: 1 };
}

/// A stream: the page whose fault continues it, the distance, and the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stream {
    next: u64,
    stride: i64,
    level: usize,
    /// Neighbours that its last window brought.
    brought: u64,
}

impl Stream {
    /// Bits: next 0-47, stride 48-55 (signed), level 56-57, brought 58-62, in use 63.
    fn decode(bits: u64) -> Option<Self> {
        let stride = i64::from((bits >> 48) as u8 as i8);
        let in_use = bits >> 63 == 1 && stride != 0;
        in_use.then_some(Stream {
            next: bits & ((1 << 48) - 1),
            stride,
            level: (bits >> 56 & 3) as usize,
            brought: bits >> 58 & 31,
        })
    }

    fn encode(self) -> u64 {
        1 << 63
            | self.brought.min(31) << 58
            | (self.level as u64) << 56
            | u64::from(self.stride as i8 as u8) << 48
            | self.next
    }

    /// Where the window that it brought last began.
    fn began(self) -> i64 {
        self.next as i64 - self.stride * WINDOWS[self.level] as i64
    }

    /// Whether a page lies in the window that it brought last.
    fn covers(self, page: u64) -> bool {
        let steps = (page as i64 - self.began()) * self.stride.signum();
        self.level > 0 && steps >= 0 && steps < (WINDOWS[self.level] as i64) * self.stride.abs()
    }

    /// The stream after a fault at `next`.
    fn continued(self, page: u64) -> Option<Self> {
        let level = (self.level + 1).min(WINDOWS.len() - 1);
        let next = page as i64 + self.stride * WINDOWS[level] as i64;
        Some(Stream {
            next: u64::try_from(next).ok()?,
            stride: self.stride,
            level,
            brought: WINDOWS[level] - 1,
        })
    }
}

impl Ahead {
    pub(crate) fn new() -> Self {
        Ahead {
            streams: CachePadded::new([const { AtomicU64::new(0) }; STREAMS]),
            next_victim: AtomicUsize::new(0),
            behind: Behind::new(),
            brought: CachePadded::new(AtomicU64::new(0)),
            used: AtomicU64::new(0),
        }
    }

    /// A page was touched that is not in memory: which to bring in with it.
    pub(crate) fn note(&self, page: PageIndex) -> Window {
        let page = page.0;
        let mut near = None;
        for slot in self.streams.iter() {
            let bits = slot.load(Relaxed);
            let Some(stream) = Stream::decode(bits) else { continue };
            if page == stream.next {
                return self.go_on(slot, bits, stream, page);
            }
            if stream.covers(page) {
                let smaller = Stream { level: stream.level - 1, brought: 0, ..stream };
                let _ = slot.compare_exchange(bits, smaller.encode(), Relaxed, Relaxed);
                return Window::ALONE;
            }
            let distance = page as i64 - stream.began();
            if stream.level == 0 && distance != 0 && distance.abs() <= STRIDE_MAX {
                near = near.or(Some((slot, bits, distance)));
            }
        }
        match near {
            Some((slot, bits, stride)) => Self::aim(slot, bits, page, stride),
            None => self.begin(page),
        }
        Window::ALONE
    }

    fn go_on(&self, slot: &AtomicU64, bits: u64, stream: Stream, page: u64) -> Window {
        let Some(next) = stream.continued(page) else { return Window::ALONE };
        if slot.compare_exchange(bits, next.encode(), Relaxed, Relaxed).is_err() {
            return Window::ALONE;
        }
        self.used.fetch_add(stream.brought, Relaxed);
        if stream.level > 0 && stream.stride.abs() == 1 {
            let last = stream.next as i64 - stream.stride;
            let first = u64::try_from(stream.began().min(last)).unwrap_or(0);
            self.behind.push(first..first + WINDOWS[stream.level]);
        }
        Window { pages: WINDOWS[next.level], stride: next.stride }
    }

    /// A window has brought only so many neighbours, and went no further than `last`: its stream goes on from there.
    pub(crate) fn cut(&self, page: PageIndex, window: Window, last: PageIndex, brought: u64) {
        let expected = page.0 as i64 + window.stride * window.pages as i64;
        let next = last.0 as i64 + window.stride;
        let (Ok(expected), Ok(next)) = (u64::try_from(expected), u64::try_from(next)) else { return };
        for slot in self.streams.iter() {
            let bits = slot.load(Relaxed);
            if let Some(stream) = Stream::decode(bits)
                && stream.next == expected
                && stream.stride == window.stride
            {
                let cut = Stream { next, brought, ..stream };
                let _ = slot.compare_exchange(bits, cut.encode(), Relaxed, Relaxed);
                return;
            }
        }
    }

    /// A stream that has had one fault is given its distance by a second one nearby.
    fn aim(slot: &AtomicU64, bits: u64, page: u64, stride: i64) {
        if let Ok(next) = u64::try_from(page as i64 + stride) {
            let _ = slot.compare_exchange(
                bits,
                Stream { next, stride, level: 0, brought: 0 }.encode(),
                Relaxed,
                Relaxed,
            );
        }
    }

    /// A new stream, in the place of one that has not gone on for some time.
    fn begin(&self, page: u64) {
        for _ in 0..VICTIMS {
            let slot = &self.streams[self.next_victim.fetch_add(1, Relaxed) % STREAMS];
            let bits = slot.load(Relaxed);
            match Stream::decode(bits) {
                // Not yet: it has gone on before, and may again.
                Some(stream) if stream.level > 0 => {
                    let next = Stream { level: stream.level - 1, brought: 0, ..stream };
                    let _ = slot.compare_exchange(bits, next.encode(), Relaxed, Relaxed);
                }
                _ => {
                    let first = Stream { next: page + 1, stride: 1, level: 0, brought: 0 };
                    let _ = slot.compare_exchange(bits, first.encode(), Relaxed, Relaxed);
                    return;
                }
            }
        }
    }

    /// The window that has been behind its stream for longest, as a range of pages; each is told once.
    pub(crate) fn next_behind(&self) -> Option<Range<u64>> {
        self.behind.pop()
    }

    /// How many windows were ever behind their stream.
    pub(crate) fn gone_on(&self) -> u64 {
        self.behind.pushed()
    }

    /// Neighbours were brought in.
    pub(crate) fn count_brought(&self, pages: u64) {
        self.brought.fetch_add(pages, Relaxed);
    }

    /// Neighbours brought in, and those of them that are known to have been used.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let brought = self.brought.load(Relaxed);
        (brought, self.used.load(Relaxed).min(brought))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_behind_once_their_stream_has_gone_on() {
        for step in [1_i64, -1] {
            let ahead = Ahead::new();
            run(&ahead, (0..1_000).map(|i| ((1 << 20) + i * step) as u64));
            let behind: Vec<_> = std::iter::from_fn(|| ahead.next_behind()).collect();
            let pages: std::collections::BTreeSet<u64> = behind.iter().cloned().flatten().collect();
            assert_eq!(pages.len(), behind.iter().map(|range| range.clone().count()).sum::<usize>());
            let (far, near) = ((1 << 20) + 900 * step, (1 << 20) + 10 * step);
            assert!(pages.contains(&(near as u64)) && pages.contains(&(far as u64)), "{step}: {behind:?}");
            // The last window is not.
            assert!(!pages.contains(&(((1 << 20) + 999 * step) as u64)));
            assert!(pages.iter().all(|page| page.abs_diff(1 << 20) < 1_000));
        }
    }

    #[test]
    fn random_pages_are_not_behind() {
        let ahead = Ahead::new();
        run(&ahead, (0..1000_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 30));
        assert_eq!(ahead.next_behind(), None);
    }

    /// Touches pages in order, as a program does that faults only on what was not brought in.
    fn run(ahead: &Ahead, pages: impl Iterator<Item = u64>) -> (usize, usize) {
        let mut there = std::collections::BTreeSet::new();
        let (mut faults, mut touched) = (0, 0);
        for page in pages {
            touched += 1;
            if there.contains(&page) {
                continue;
            }
            faults += 1;
            let window = ahead.note(PageIndex(page));
            (0..window.pages as i64).for_each(|i| {
                there.insert((page as i64 + i * window.stride) as u64);
            });
            ahead.count_brought(window.pages - 1);
        }
        (faults, touched)
    }

    #[test]
    fn sequential_access_faults_once_a_window() {
        for (first, step) in [(0_i64, 1_i64), (1 << 20, -1), (7, 3), (1 << 20, -64)] {
            let ahead = Ahead::new();
            let (faults, touched) = run(&ahead, (0..10_000).map(|i| (first + (i % 10_000) * step) as u64));
            assert!(faults < touched / 28, "{step}: {faults} faults for {touched} pages");
            let (brought, used) = ahead.counts();
            assert!(used * 100 >= brought * 97, "{step}: {used} of {brought}");
        }
    }

    #[test]
    fn random_access_brings_no_neighbours() {
        let ahead = Ahead::new();
        let mut x = 1_u64;
        let random = std::iter::repeat_with(move || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            x >> 40
        });
        run(&ahead, random.take(100_000));
        let (brought, _) = ahead.counts();
        assert!(brought < 2_000, "{brought} neighbours");
    }

    #[test]
    fn streams_beside_each_other_and_beside_noise_are_told_apart() {
        let ahead = Ahead::new();
        let pages = (0..4_000_u64).flat_map(|i| {
            let noise = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 30;
            [i, (1 << 40) + i, (1 << 41) + i * 2, noise | 1 << 45].into_iter().take(if i % 8 == 0 {
                4
            } else {
                3
            })
        });
        let (faults, _) = run(&ahead, pages);
        assert!(faults < 500 + 3 * 4_000 / 20, "{faults}");
    }

    #[test]
    fn a_stream_that_ends_is_not_counted_as_used() {
        let ahead = Ahead::new();
        run(&ahead, 0..6);
        let (brought, used) = ahead.counts();
        assert!(brought > 0 && used < brought, "{used} of {brought}");
    }

    #[test]
    fn the_last_and_first_pages_do_not_overflow() {
        let ahead = Ahead::new();
        run(&ahead, (0..5).rev());
        run(&ahead, (1_u64 << 36)..(1 << 36) + 5);
        let far = Stream { next: (1 << 48) - 1, stride: -64, level: 3, brought: 31 };
        assert_eq!(Stream::decode(far.encode()), Some(far));
    }
}
