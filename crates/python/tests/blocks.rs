//! The allocator of blocks against an obvious twin: a vector with the owner of each page.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../src/blocks.rs"]
mod blocks;

use blocks::Blocks;
use proptest::prelude::*;

const PAGES: u64 = 64;

/// The owner of each page: 0 is free, -1 is taken without a block, and others are the numbers of blocks.
struct Twin {
    pages: Vec<i64>,
    next: i64,
}

impl Twin {
    /// Returns the free runs: start and length.
    fn free_runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (page, _) in self.pages.iter().enumerate().filter(|(_, owner)| **owner == 0) {
            match runs.last_mut() {
                Some((start, len)) if *start + *len == page as u64 => *len += 1,
                _ => runs.push((page as u64, 1)),
            }
        }
        runs
    }

    /// Best fit: the start of the shortest run that is long enough, the first of equal ones.
    fn place(&self, pages: u64) -> Option<u64> {
        let fitting = self.free_runs().into_iter().filter(|run| run.1 >= pages);
        fitting.min_by_key(|run| (run.1, run.0)).map(|run| run.0)
    }

    fn set(&mut self, start: u64, len: u64, owner: i64) {
        self.pages[start as usize..(start + len) as usize].fill(owner);
    }

    /// Returns start and length of the block that begins at a page.
    fn block(&self, start: u64) -> Option<(u64, u64)> {
        let owner = *self.pages.get(start as usize)?;
        let first = self.pages.iter().position(|it| *it == owner)? as u64;
        let len = self.pages.iter().filter(|it| **it == owner).count() as u64;
        (owner > 0 && first == start).then_some((start, len))
    }
}

#[derive(Debug, Clone)]
enum Step {
    Take(u64),
    Free(u64),
    Remove(u64),
    TakeBack,
    Release,
    Grow(u64, u64),
    Shrink(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let page = 0..PAGES;
    let step = prop_oneof![
        4 => (0_u64..12).prop_map(Step::Take),
        4 => page.clone().prop_map(Step::Free),
        1 => page.clone().prop_map(Step::Remove),
        1 => Just(Step::TakeBack),
        1 => Just(Step::Release),
        2 => (page.clone(), 0_u64..16).prop_map(|(page, len)| Step::Grow(page, len)),
        2 => (page, 0_u64..8).prop_map(|(page, len)| Step::Shrink(page, len)),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    #[test]
    fn blocks_equal_the_twin(steps in steps()) {
        let mut blocks = Blocks::new(PAGES);
        let mut twin = Twin { pages: vec![0; PAGES as usize], next: 1 };
        let mut removed: Vec<(u64, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Take(pages) => {
                    let place = twin.place(pages.max(1));
                    prop_assert_eq!(blocks.take(pages), place);
                    if let Some(start) = place {
                        twin.set(start, pages.max(1), twin.next);
                        twin.next += 1;
                    }
                }
                Step::Free(start) => {
                    let block = twin.block(start);
                    prop_assert_eq!(blocks.remove(start), block.map(|it| it.1));
                    if let Some((start, len)) = block {
                        blocks.release(start, len);
                        twin.set(start, len, 0);
                    }
                }
                Step::Remove(start) => {
                    let block = twin.block(start);
                    prop_assert_eq!(blocks.remove(start), block.map(|it| it.1));
                    if let Some((start, len)) = block {
                        twin.set(start, len, -1);
                        removed.push((start, len));
                    }
                }
                Step::TakeBack => {
                    if let Some((start, len)) = removed.pop().filter(|it| it.1 > 0) {
                        blocks.take_back(start, len);
                        twin.set(start, len, twin.next);
                        twin.next += 1;
                    }
                }
                Step::Release => {
                    for (start, len) in removed.drain(..) {
                        blocks.release(start, len);
                        twin.set(start, len, 0);
                    }
                }
                Step::Grow(start, pages) => {
                    let block = twin.block(start);
                    let can = block.is_some_and(|(_, len)| {
                        pages >= len
                            && start + pages <= PAGES
                            && twin.pages[(start + len) as usize..(start + pages) as usize].iter().all(|it| *it == 0)
                    });
                    prop_assert_eq!(blocks.grow(start, pages), can);
                    if can {
                        let owner = twin.pages[start as usize];
                        twin.set(start, pages, owner);
                    }
                }
                Step::Shrink(start, pages) => {
                    let block = twin.block(start).filter(|(_, len)| *len >= pages.max(1));
                    let lost = block.map(|(_, len)| (start + pages.max(1), len - pages.max(1)));
                    prop_assert_eq!(blocks.shrink(start, pages), lost);
                    if let Some((start, len)) = lost {
                        twin.set(start, len, -1);
                        removed.push((start, len));
                    }
                }
            }
            let taken = twin.pages.iter().filter(|it| **it != 0).count() as u64;
            prop_assert_eq!(blocks.used_pages(), taken);
            let owners: std::collections::BTreeSet<_> = twin.pages.iter().filter(|it| **it > 0).collect();
            prop_assert_eq!(blocks.count(), owners.len());
        }
    }
}

#[test]
fn a_range_without_pages_has_no_blocks() {
    let mut blocks = Blocks::new(0);
    assert_eq!((blocks.take(1), blocks.remove(0), blocks.len_at(0)), (None, None, None));
}
