//! The freed blocks that stay resident, against a list of all that were freed.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../src/freed.rs"]
mod freed;

use freed::{BLOCKS_MAX, FreedBlocks, PAGES_MAX};
use proptest::prelude::*;

type Block = (u64, u64);

fn pages(blocks: &[Block]) -> u64 {
    blocks.iter().map(|block| block.1).sum()
}

/// Removes the oldest blocks one by one until the others are few enough.
fn remove_oldest(twin: &mut Vec<Block>, pages_max: u64, blocks_max: usize) -> Vec<Block> {
    let mut lost = Vec::new();
    while pages(twin) > pages_max || twin.len() > blocks_max {
        lost.push(twin.remove(0));
    }
    lost
}

proptest! {
    #[test]
    fn a_block_stays_is_taken_or_lost_and_the_last_of_its_length_is_taken(
        steps in prop::collection::vec((0..6_u8, 0..7usize, 0..4usize), 1..200),
    ) {
        let lens = [1, 2, 256, 300, PAGES_MAX / 2, PAGES_MAX, PAGES_MAX + 1];
        let maxima = [0, 600, PAGES_MAX, u64::MAX];
        let (mut freed, mut twin) = (FreedBlocks::default(), Vec::<Block>::new());
        for (number, (kind, len, max)) in steps.into_iter().enumerate() {
            let (start, len, max) = (number as u64, lens[len], maxima[max]);
            match kind {
                0..3 => {
                    let lost = freed.push(start, len, max);
                    twin.push((start, len));
                    // The oldest are lost, but a block that is too large takes the place of none.
                    let expected = if len > max.min(PAGES_MAX) {
                        let same = twin.pop();
                        remove_oldest(&mut twin, max, BLOCKS_MAX).into_iter().chain(same).collect()
                    } else {
                        remove_oldest(&mut twin, max.min(PAGES_MAX), BLOCKS_MAX)
                    };
                    prop_assert_eq!(lost, expected);
                }
                3 => prop_assert_eq!(freed.shrink(max), remove_oldest(&mut twin, max, BLOCKS_MAX)),
                4 => {
                    let oldest = (!twin.is_empty()).then(|| twin.remove(0));
                    prop_assert_eq!(freed.take_oldest(), oldest);
                }
                _ => {
                    let at = twin.iter().rposition(|block| block.1 == len);
                    prop_assert_eq!(freed.take(len), at.map(|at| twin.remove(at).0));
                }
            }
            prop_assert_eq!(freed.pages(), pages(&twin));
            prop_assert!(freed.pages() <= PAGES_MAX && twin.len() <= BLOCKS_MAX);
        }
        prop_assert_eq!(freed.take_all(), twin);
        prop_assert_eq!(freed.pages(), 0);
    }
}

#[test]
fn an_expression_gets_its_temporary_blocks_back() {
    let mut freed = FreedBlocks::default();
    assert!(freed.push(0, 256, 512).is_empty() && freed.push(256, 256, 512).is_empty());
    assert_eq!((freed.take(256), freed.take(256), freed.take(256)), (Some(256), Some(0), None));
}
