//! Tests of the staging area: any sequence of what its users do against a map, and the longest run bit by bit.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};

/// Few trays, so that they run out.
const TRAYS: usize = 3;

/// Where a tray is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Empty,
    Held,
    Queued,
    Stocked,
}

/// A tray, frame by frame.
#[derive(Debug, Clone)]
struct Twin {
    place: Place,
    pages: Vec<u64>,
    backed: [bool; TRAY_FRAMES],
}

#[derive(Debug, Clone, Copy)]
enum Step {
    TakeEmpty,
    TakeStock,
    Dequeue,
    /// Fills frames of a held tray with pages from this one on.
    Put {
        pages: u64,
        count: usize,
    },
    Enqueue,
    /// The memory of a frame of a held or queued tray goes to the region.
    NoteMoved {
        frame: u16,
    },
    /// Nothing waits in a held tray any more: it goes where it belongs, its memory perhaps given up.
    Release {
        gives_up: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::TakeEmpty),
        1 => Just(Step::TakeStock),
        1 => Just(Step::Dequeue),
        3 => (0..1_u64 << 40, 1..TRAY_FRAMES).prop_map(|(pages, count)| Step::Put { pages, count }),
        1 => Just(Step::Enqueue),
        8 => (0..(TRAYS * TRAY_FRAMES) as u16).prop_map(|frame| Step::NoteMoved { frame }),
        2 => any::<bool>().prop_map(|gives_up| Step::Release { gives_up }),
    ]
}

/// The area, its twin, and the trays that are held, oldest first.
struct World {
    staging: Staging,
    trays: BTreeMap<u16, Twin>,
    queue: VecDeque<u16>,
    held: VecDeque<Tray>,
}

impl World {
    fn new() -> Self {
        let twin = Twin { place: Place::Empty, pages: Vec::new(), backed: [false; TRAY_FRAMES] };
        World {
            staging: Staging::new(TRAYS).unwrap(),
            trays: (0..TRAYS as u16).map(|tray| (tray, twin.clone())).collect(),
            queue: VecDeque::new(),
            held: VecDeque::new(),
        }
    }

    fn twin(&mut self, tray: &Tray) -> &mut Twin {
        self.trays.get_mut(&tray.0).unwrap()
    }

    /// Takes what was found in `place`, if anything should have been.
    fn found(&mut self, tray: Option<Tray>, place: Place) {
        assert_eq!(tray.is_some(), self.trays.values().any(|twin| twin.place == place));
        if let Some(tray) = tray {
            let twin = self.twin(&tray);
            assert_eq!(twin.place, place);
            twin.place = Place::Held;
            self.held.push_back(tray);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::TakeEmpty => self.found(self.staging.take_empty(), Place::Empty),
            Step::TakeStock => self.found(self.staging.take_stock(), Place::Stocked),
            Step::Dequeue => {
                let tray = self.staging.dequeue();
                assert_eq!(tray.as_ref().map(|tray| tray.0), self.queue.pop_front());
                self.found(tray, Place::Queued);
            }
            Step::Put { pages, count } => {
                let Some(tray) = self.held.pop_front() else { return };
                let twin = self.trays.get_mut(&tray.0).unwrap();
                for page in (pages..).take(count.min(TRAY_FRAMES - twin.pages.len())) {
                    self.staging.put(&tray, PageIndex(page));
                    twin.backed[twin.pages.len()] = true;
                    twin.pages.push(page);
                }
                self.held.push_front(tray);
            }
            Step::Enqueue => {
                let Some(tray) = self.held.pop_front() else { return };
                self.twin(&tray).place = Place::Queued;
                self.queue.push_back(tray.0);
                self.staging.enqueue(tray);
            }
            Step::NoteMoved { frame } => {
                let at = usize::from(frame) % TRAY_FRAMES;
                let twin = self.trays.get_mut(&(frame / TRAY_FRAMES as u16)).unwrap();
                if matches!(twin.place, Place::Held | Place::Queued) {
                    twin.backed[at] = false;
                    self.staging.note_moved(Frame(frame));
                }
            }
            Step::Release { gives_up } => self.release(gives_up),
        }
    }

    fn release(&mut self, gives_up: bool) {
        let Some(tray) = self.held.pop_front() else { return };
        self.staging.reset(&tray);
        self.twin(&tray).pages.clear();
        if gives_up {
            self.staging.set_unbacked(&tray);
            self.twin(&tray).backed = [false; TRAY_FRAMES];
        }
        let is_backed = self.twin(&tray).backed.contains(&true);
        self.twin(&tray).place = if is_backed { Place::Stocked } else { Place::Empty };
        match is_backed {
            true => self.staging.give_stock(tray),
            false => self.staging.give_empty(tray),
        }
    }

    fn compare(&self) {
        let frames = |twin: &Twin| twin.backed.iter().filter(|is_backed| **is_backed).count();
        let stocked = self.trays.values().filter(|twin| twin.place == Place::Stocked);
        assert_eq!(self.staging.stock() as usize, stocked.map(frames).sum::<usize>());
        assert_eq!(self.staging.queued(), self.queue.len());
        for (number, twin) in &self.trays {
            let tray = Tray(*number);
            assert_eq!(self.staging.filled(&tray), twin.pages.len());
            for (at, page) in twin.pages.iter().enumerate() {
                assert_eq!(self.staging.page(&tray, at), PageIndex(*page));
            }
            for (at, is_backed) in twin.backed.iter().enumerate() {
                assert_eq!(self.staging.backed(&tray) >> at & 1 == 1, *is_backed, "{tray:?} {at}");
            }
        }
    }
}

/// Bit by bit.
fn longest_run_slow(bits: u64) -> usize {
    let (mut best, mut len) = (0, 0);
    for at in 0..64 {
        len = if bits >> at & 1 == 1 { len + 1 } else { 0 };
        best = best.max(len);
    }
    best
}

proptest! {
    #[test]
    fn the_area_agrees_with_a_map(steps in prop::collection::vec(step(), 0..150)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.compare();
        }
    }

    #[test]
    fn longest_run_agrees_with_its_twin(a: u64, b: u64) {
        for bits in [a, a & b, a | b, 0, u64::MAX, 1, 1 << 63] {
            let (at, len) = longest_run(bits);
            prop_assert_eq!(len, longest_run_slow(bits));
            prop_assert!((at..at + len).all(|i| bits >> i & 1 == 1));
        }
    }
}

#[test]
fn a_full_tray_is_backed_by_all_of_its_frames() {
    let staging = Staging::new(TRAYS).unwrap();
    let tray = staging.take_empty().unwrap();
    (0..TRAY_FRAMES as u64).for_each(|page| staging.put(&tray, PageIndex(page)));
    assert_eq!((staging.filled(&tray), staging.backed(&tray)), (TRAY_FRAMES, u64::MAX));
    let last = staging.frame(&tray, TRAY_FRAMES - 1);
    staging.note_moved(last);
    assert_eq!(staging.backed(&tray), u64::MAX >> 1);
}

#[test]
fn every_frame_has_its_own_number_and_place() {
    // As many as there can be: the last frame's number must still fit.
    let staging = Staging::new(usize::MAX).unwrap();
    assert_eq!(staging.tray_count(), TRAYS_MAX);
    let mut places = HashSet::new();
    while let Some(tray) = staging.take_empty() {
        for at in 0..TRAY_FRAMES {
            let frame = staging.frame(&tray, at);
            assert_eq!(frame.0, tray.0 * TRAY_FRAMES as u16 + at as u16);
            let offset = staging.address(frame).addr() - staging.memory().base().as_ptr().addr();
            assert!(offset.is_multiple_of(PAGE_SIZE) && offset < staging.memory().len_bytes());
            assert!(places.insert(offset));
        }
    }
    assert_eq!(places.len(), TRAYS_MAX * TRAY_FRAMES);
}

#[test]
#[should_panic(expected = "assertion failed")]
fn a_frame_beyond_the_area_has_no_place() {
    let staging = Staging::new(TRAYS).unwrap();
    staging.address(Frame((TRAYS * TRAY_FRAMES) as u16));
}
