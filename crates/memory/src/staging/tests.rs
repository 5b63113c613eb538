//! Tests of the staging area: random sequences of operations against a model, and the longest run against a bit-by-bit
//! search.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};

/// Few batches, so that they run out.
const BATCHES: usize = 3;

/// Where a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    Empty,
    Held,
    Queued,
    BackedFree,
}

/// The model of a batch, frame by frame.
#[derive(Debug, Clone)]
struct Model {
    location: Location,
    pages: Vec<u64>,
    backed: [bool; BATCH_FRAMES],
}

#[derive(Debug, Clone, Copy)]
enum Step {
    TakeEmpty,
    TakeBacked,
    Dequeue,
    /// Fills frames of an owned batch with pages from this one on.
    Put {
        pages: u64,
        count: usize,
    },
    Enqueue,
    /// The memory of a frame of an owned or queued batch goes to the region.
    NoteMoved {
        frame: u16,
    },
    /// No page waits in an owned batch any more: it is put back, perhaps without its memory.
    Release {
        gives_up: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::TakeEmpty),
        1 => Just(Step::TakeBacked),
        1 => Just(Step::Dequeue),
        3 => (0..1_u64 << 40, 1..BATCH_FRAMES).prop_map(|(pages, count)| Step::Put { pages, count }),
        1 => Just(Step::Enqueue),
        8 => (0..(BATCHES * BATCH_FRAMES) as u16).prop_map(|frame| Step::NoteMoved { frame }),
        2 => any::<bool>().prop_map(|gives_up| Step::Release { gives_up }),
    ]
}

/// The area, its model, and the batches that the test owns, oldest first.
struct Harness {
    staging: Staging,
    batches: BTreeMap<u16, Model>,
    queue: VecDeque<u16>,
    held: VecDeque<FrameBatch>,
}

impl Harness {
    fn new() -> Self {
        let model = Model { location: Location::Empty, pages: Vec::new(), backed: [false; BATCH_FRAMES] };
        Harness {
            staging: Staging::new(BATCHES).unwrap(),
            batches: (0..BATCHES as u16).map(|batch| (batch, model.clone())).collect(),
            queue: VecDeque::new(),
            held: VecDeque::new(),
        }
    }

    fn model(&mut self, batch: &FrameBatch) -> &mut Model {
        self.batches.get_mut(&batch.0).unwrap()
    }

    /// Takes a batch out of `location`, and checks that there was one if the model has one.
    fn found(&mut self, batch: Option<FrameBatch>, location: Location) {
        assert_eq!(batch.is_some(), self.batches.values().any(|model| model.location == location));
        if let Some(batch) = batch {
            let model = self.model(&batch);
            assert_eq!(model.location, location);
            model.location = Location::Held;
            self.held.push_back(batch);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::TakeEmpty => self.found(self.staging.take_empty(), Location::Empty),
            Step::TakeBacked => self.found(self.staging.take_backed(), Location::BackedFree),
            Step::Dequeue => {
                let batch = self.staging.dequeue();
                assert_eq!(batch.as_ref().map(|batch| batch.0), self.queue.pop_front());
                self.found(batch, Location::Queued);
            }
            Step::Put { pages, count } => {
                let Some(batch) = self.held.pop_front() else { return };
                let model = self.batches.get_mut(&batch.0).unwrap();
                for page in (pages..).take(count.min(BATCH_FRAMES - model.pages.len())) {
                    self.staging.put(&batch, PageIndex(page));
                    model.backed[model.pages.len()] = true;
                    model.pages.push(page);
                }
                self.held.push_front(batch);
            }
            Step::Enqueue => {
                let Some(batch) = self.held.pop_front() else { return };
                self.model(&batch).location = Location::Queued;
                self.queue.push_back(batch.0);
                self.staging.enqueue(batch);
            }
            Step::NoteMoved { frame } => {
                let at = usize::from(frame) % BATCH_FRAMES;
                let model = self.batches.get_mut(&(frame / BATCH_FRAMES as u16)).unwrap();
                if matches!(model.location, Location::Held | Location::Queued) {
                    model.backed[at] = false;
                    self.staging.note_moved(Frame(frame));
                }
            }
            Step::Release { gives_up } => self.release(gives_up),
        }
    }

    fn release(&mut self, gives_up: bool) {
        let Some(batch) = self.held.pop_front() else { return };
        self.staging.reset(&batch);
        self.model(&batch).pages.clear();
        if gives_up {
            self.staging.set_unbacked(&batch);
            self.model(&batch).backed = [false; BATCH_FRAMES];
        }
        let is_backed = self.model(&batch).backed.contains(&true);
        self.model(&batch).location = if is_backed { Location::BackedFree } else { Location::Empty };
        match is_backed {
            true => self.staging.put_backed(batch),
            false => self.staging.put_empty(batch),
        }
    }

    fn compare(&self) {
        let frames = |model: &Model| model.backed.iter().filter(|is_backed| **is_backed).count();
        let free = self.batches.values().filter(|model| model.location == Location::BackedFree);
        assert_eq!(self.staging.backed_free_frames() as usize, free.map(frames).sum::<usize>());
        assert_eq!(self.staging.queued(), self.queue.len());
        for (number, model) in &self.batches {
            let batch = FrameBatch(*number);
            assert_eq!(self.staging.filled(&batch), model.pages.len());
            for (at, page) in model.pages.iter().enumerate() {
                assert_eq!(self.staging.page(&batch, at), PageIndex(*page));
            }
            for (at, is_backed) in model.backed.iter().enumerate() {
                assert_eq!(self.staging.backed(&batch) >> at & 1 == 1, *is_backed, "{batch:?} {at}");
            }
        }
    }
}

/// Searches bit by bit.
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
    fn the_area_agrees_with_its_model(steps in prop::collection::vec(step(), 0..150)) {
        let mut harness = Harness::new();
        for step in steps {
            harness.step(step);
            harness.compare();
        }
    }

    #[test]
    fn longest_run_agrees_with_a_search_bit_by_bit(a: u64, b: u64) {
        for bits in [a, a & b, a | b, 0, u64::MAX, 1, 1 << 63] {
            let (at, len) = longest_run(bits);
            prop_assert_eq!(len, longest_run_slow(bits));
            prop_assert!((at..at + len).all(|i| bits >> i & 1 == 1));
        }
    }
}

#[test]
fn all_frames_of_a_full_batch_have_memory() {
    let staging = Staging::new(BATCHES).unwrap();
    let batch = staging.take_empty().unwrap();
    (0..BATCH_FRAMES as u64).for_each(|page| staging.put(&batch, PageIndex(page)));
    assert_eq!((staging.filled(&batch), staging.backed(&batch)), (BATCH_FRAMES, u64::MAX));
    let last = staging.frame(&batch, BATCH_FRAMES - 1);
    staging.note_moved(last);
    assert_eq!(staging.backed(&batch), u64::MAX >> 1);
}

#[test]
fn every_frame_has_a_unique_number_and_address() {
    // The most batches that are possible: the last frame's number must still fit.
    let staging = Staging::new(usize::MAX).unwrap();
    assert_eq!(staging.batch_count(), BATCHES_MAX);
    let mut places = HashSet::new();
    while let Some(batch) = staging.take_empty() {
        for at in 0..BATCH_FRAMES {
            let frame = staging.frame(&batch, at);
            assert_eq!(frame.0, batch.0 * BATCH_FRAMES as u16 + at as u16);
            let offset = staging.address(frame).addr() - staging.memory().base().as_ptr().addr();
            assert!(offset.is_multiple_of(PAGE_SIZE) && offset < staging.memory().len_bytes());
            assert!(places.insert(offset));
        }
    }
    assert_eq!(places.len(), BATCHES_MAX * BATCH_FRAMES);
}

#[test]
#[should_panic(expected = "assertion failed")]
fn the_address_of_a_frame_beyond_the_area_panics() {
    let staging = Staging::new(BATCHES).unwrap();
    staging.address(Frame((BATCHES * BATCH_FRAMES) as u16));
}
