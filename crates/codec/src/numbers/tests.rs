//! The loops for each set of instructions against the slow twin, for each lane, width and shift; and the plans against a
//! search that takes number after number.

#[path = "../../tests/support/numbers_slow.rs"]
mod slow;

use super::format::{HEADER_LEN_MAX, Plan};
use super::lane::{self, ROW_LEN};
use crate::isa::Isa;
use pagefold_page::{PAGE_SIZE, Page};
use proptest::prelude::*;
use slow::{Packing, noise};

fn page_of(numbers: impl IntoIterator<Item = u64>, lane_len: usize) -> Page {
    let bytes: Vec<u8> = numbers
        .into_iter()
        .flat_map(|number| number.to_le_bytes()[..lane_len].to_vec())
        .take(PAGE_SIZE)
        .collect();
    bytes.try_into().unwrap()
}

/// Makes a page that needs a packing: numbers, or differences to the row before, that are spread over its width.
fn page_for(packing: Packing, seed: u64) -> Page {
    let Packing { lane_len, is_delta, shift, width, base } = packing;
    let mut random = noise(seed);
    let mask = 1_u64.checked_shl(width).map_or(u64::MAX, |above| above - 1);
    let columns = ROW_LEN / lane_len;
    let mut numbers: Vec<u64> = Vec::new();
    for lane in 0..PAGE_SIZE / lane_len {
        let number = base.wrapping_add((random() & mask) << shift);
        numbers.push(match (is_delta, lane.checked_sub(columns)) {
            (false, _) => number,
            (true, Some(before)) => numbers[before].wrapping_add(number),
            (true, None) => random(),
        });
    }
    page_of(numbers, lane_len)
}

fn pack(isa: Isa, page: &Page, plan: Plan) -> Vec<u8> {
    let mut bytes = vec![0xee; HEADER_LEN_MAX + PAGE_SIZE];
    plan.write(&lane::rows(page)[0], bytes.first_chunk_mut().unwrap());
    isa.pack(page, plan, bytes[plan.header_len()..plan.len()].as_chunks_mut().0);
    assert!(bytes[plan.len().max(HEADER_LEN_MAX)..].iter().all(|byte| *byte == 0xee), "{isa:?} {plan:?}");
    bytes.truncate(plan.len());
    bytes
}

fn unpack(isa: Isa, bytes: &[u8]) -> Option<Page> {
    let (plan, first_row, payload) = Plan::read(bytes)?;
    let mut page = [0xa5; PAGE_SIZE];
    isa.unpack(plan, &first_row, payload, &mut page);
    Some(page)
}

fn plan_of(packing: Packing) -> Plan {
    let Packing { lane_len, is_delta, shift, width, base } = packing;
    let base = lane_bits(base, lane_len);
    Plan { lane_log: lane_len.ilog2() as u8, is_delta, shift: shift as u8, width: width as u8, base }
}

fn lane_bits(number: u64, lane_len: usize) -> u64 {
    number & (u64::MAX >> (64 - 8 * lane_len))
}

/// Checks that all variants pack a page to the bytes of the slow twin, and get it back from them.
fn check(page: &Page, packing: Packing) {
    let expected = slow::encode(page, packing);
    assert!(slow::decode(&expected).as_deref() == Some(&page[..]), "{packing:?}: the slow twin");
    for isa in Isa::all() {
        assert!(pack(isa, page, plan_of(packing)) == expected, "{isa:?} {packing:?}: packed");
        assert!(unpack(isa, &expected).as_ref() == Some(page), "{isa:?} {packing:?}: unpacked");
    }
}

#[test]
fn every_width_and_shift_of_every_lane_packs_as_the_slow_twin_does() {
    for lane_len in [1, 2, 4, 8] {
        let bits = 8 * lane_len as u32;
        for width in 0..=bits {
            // All shifts of the widest lane take long: those of each fifth width.
            let shifts = (0..=bits - width).filter(|shift| {
                *shift < bits && (lane_len < 8 || width % 5 == 0 || *shift < 2 || shift + width == bits)
            });
            for shift in shifts {
                for is_delta in [false, true] {
                    let base = noise(u64::from(width))();
                    let packing = Packing { lane_len, is_delta, shift, width, base };
                    check(&page_for(packing, u64::from(shift)), packing);
                }
            }
        }
    }
}

/// Returns base, shift and width by looking at one number after the other.
fn slow_plan(page: &Page, lane_len: usize, is_delta: bool) -> Plan {
    let numbers: Vec<u64> = page
        .chunks(lane_len)
        .map(|bytes| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        .collect();
    let columns = ROW_LEN / lane_len;
    let packed: Vec<u64> = match is_delta {
        false => numbers,
        true => (columns..numbers.len())
            .map(|at| lane_bits(numbers[at].wrapping_sub(numbers[at - columns]), lane_len))
            .collect(),
    };
    let unused = 64 - 8 * lane_len;
    let differences: Vec<i128> = packed
        .iter()
        .map(|number| i128::from((number.wrapping_sub(packed[0]) << unused) as i64 >> unused))
        .collect();
    let (lowest, highest) = (*differences.iter().min().unwrap(), *differences.iter().max().unwrap());
    let shift = (0..63).take_while(|shift| differences.iter().all(|d| d % (2 << shift) == 0)).count() as u8;
    let (shift, span) = if highest == lowest { (0, 0) } else { (shift, (highest - lowest) >> shift) };
    Plan {
        lane_log: lane_len.ilog2() as u8,
        is_delta,
        shift,
        width: (128 - span.leading_zeros()) as u8,
        base: lane_bits(packed[0].wrapping_add(lowest as u64), lane_len),
    }
}

/// Checks the plans for all lanes, and that the page can be packed by each.
fn check_plans(page: &Page) {
    for (lane_log, lane_len) in [(0, 1), (1, 2), (2, 4), (3, 8)] {
        for is_delta in [false, true] {
            let expected = slow_plan(page, lane_len, is_delta);
            for isa in Isa::all() {
                assert_eq!(isa.plan(page, lane_log, is_delta), expected, "{isa:?}");
            }
            let Plan { shift, width, base, .. } = expected;
            check(page, Packing { lane_len, is_delta, shift: shift.into(), width: width.into(), base });
        }
    }
}

#[test]
fn the_plans_for_extreme_numbers_are_right() {
    let extremes = [i64::MIN, i64::MAX, 0, -1, 1, i64::MIN + 1, i64::from(i32::MIN), i64::from(i32::MAX)];
    for first in extremes {
        for second in extremes {
            check_plans(&page_of([first as u64, second as u64].into_iter().cycle().take(512), 8));
        }
        check_plans(&page_of((0..512).map(|at| if at == 77 { first as u64 } else { 5 }), 8));
    }
    for byte in 0..=255 {
        check_plans(&page_of((0..4096).map(|at| if at % 100 == 3 { byte } else { 128 }), 1));
    }
}

#[test]
fn small_numbers_of_both_signs_take_few_bits() {
    let mut random = noise(1);
    let page = page_of((0..512).map(|_| (random() % 201).wrapping_sub(100)), 8);
    let plan = Isa::detect().plan(&page, 3, false);
    assert_eq!((plan.width, plan.shift, plan.base as i64), (8, 0, -100));
    let estimate = Isa::detect().estimate(&page);
    assert!((7..=8).contains(&estimate[3]) && estimate[0] == 8, "{estimate:?}");
}

#[test]
fn the_estimate_is_the_same_for_all_instructions_and_never_too_high() {
    for seed in 0..200 {
        let mut random = noise(seed);
        let page = page_of((0..512).map(|at| (random() >> (seed % 60)) + at * seed), 8);
        let estimates: Vec<_> = Isa::all().iter().map(|isa| isa.estimate(&page)).collect();
        assert!(estimates.iter().all(|estimate| *estimate == estimates[0]), "{estimates:?}");
        for lane_log in 0..4 {
            let plan = Isa::detect().plan(&page, lane_log, false);
            // Fewer numbers may have a greater shift, so the highest bit counts.
            let estimate = estimates[0][usize::from(lane_log)];
            assert!(estimate <= plan.width + plan.shift, "{estimate} {plan:?}");
        }
    }
}

#[test]
fn headers_that_are_wrong_are_refused() {
    let packing = Packing { lane_len: 8, is_delta: true, shift: 3, width: 9, base: 77 };
    let bytes = slow::encode(&page_for(packing, 1), packing);
    assert!(Plan::read(&bytes).is_some());
    let changed = |at: usize, to: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = to;
        Plan::read(&bytes).is_some()
    };
    assert!((0..=255).all(|kind| changed(0, kind) == (kind == 8)));
    assert!((0..=255).all(|shift| changed(1, shift) == (shift <= 64 - 9)));
    assert!((0..=255).all(|width| changed(2, width) == (width == 9)));
    assert!((0..bytes.len()).all(|len| Plan::read(&bytes[..len]).is_none()));
    assert!(Plan::read(&[&bytes[..], &[0]].concat()).is_none());
    // The payload of a lane of one byte at 64 bits has the right length, but no lane has so many.
    assert!(Plan::read(&[&[1, 0, 64, 0][..], &[0; 4096 * 8]].concat()).is_none());
    assert!(Plan::read(&[4, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn plans_for_any_numbers_are_right(
        seed: u64, lane_log in 0..4_u32, base: u64, width in 0..=64_u32, shift in 0..64_u32, is_delta: bool,
        far in prop::collection::vec((0..PAGE_SIZE, any::<u8>()), 0..3),
    ) {
        let lane_len = 1 << lane_log;
        let width = width % (8 * lane_len as u32 + 1);
        let shift = if width == 8 * lane_len as u32 { 0 } else { shift % (8 * lane_len as u32 - width) };
        let mut page = page_for(Packing { lane_len, is_delta, shift, width, base }, seed);
        far.into_iter().for_each(|(at, byte)| page[at] = byte);
        check_plans(&page);
    }
}
