//! The freed blocks that stay resident, against a list of all that were freed.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../src/freed.rs"]
mod freed;

use freed::{BLOCKS_MAX, FreedBlocks, PAGES_MAX};
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_block_stays_is_taken_or_lost_and_the_last_of_its_length_is_taken(
        steps in prop::collection::vec((any::<bool>(), 0..7usize), 1..200),
    ) {
        let lens = [1, 2, 256, 300, PAGES_MAX / 2, PAGES_MAX, PAGES_MAX + 1];
        let (mut freed, mut twin) = (FreedBlocks::default(), Vec::<(u64, u64)>::new());
        for (number, (is_push, len)) in steps.into_iter().enumerate() {
            let (start, len) = (number as u64, lens[len]);
            if is_push {
                let lost = freed.push(start, len);
                twin.push((start, len));
                // The oldest are lost, but for a block that is too large.
                let from = if len > PAGES_MAX { twin.len() - 1 } else { 0 };
                let expected: Vec<_> = twin.drain(from..from + lost.len()).collect();
                prop_assert_eq!(&lost, &expected);
                let is_full = |block: &(u64, u64)| {
                    freed.pages() + block.1 > PAGES_MAX || twin.len() == BLOCKS_MAX
                };
                prop_assert!(lost.last().is_none_or(is_full), "lost without need: {:?}", lost);
            } else {
                let at = twin.iter().rposition(|block| block.1 == len);
                prop_assert_eq!(freed.take(len), at.map(|at| twin.remove(at).0));
            }
            prop_assert_eq!(freed.pages(), twin.iter().map(|block| block.1).sum::<u64>());
            prop_assert!(freed.pages() <= PAGES_MAX && twin.len() <= BLOCKS_MAX);
        }
        prop_assert_eq!(freed.take_all(), twin);
        prop_assert_eq!(freed.pages(), 0);
    }
}

#[test]
fn an_expression_gets_its_temporary_blocks_back() {
    let mut freed = FreedBlocks::default();
    assert!(freed.push(0, 256).is_empty() && freed.push(256, 256).is_empty());
    assert_eq!((freed.take(256), freed.take(256), freed.take(256)), (Some(256), Some(0), None));
}
