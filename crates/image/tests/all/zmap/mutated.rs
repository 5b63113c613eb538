//! Indexes with changed or random bytes: a lookup returns an error or an extent within all limits, in little time.

use super::Slice;
use super::build::{Built, Spec, Tail, context, records, spec};
use pagefold_image::Address;
use pagefold_image::read::{IndexForm, Mapping, ZContext, ZMap};
use proptest::prelude::*;

/// Looks up `offsets` (taken modulo the size) and checks the guarantees for every extent.
fn look_up(built: &Built, offsets: &[u64]) -> Result<(), TestCaseError> {
    let bytes = Slice(&built.data);
    let Ok(map) = ZMap::open(&bytes, &built.context, built.form, built.tail, built.size) else {
        return Ok(());
    };
    map.header();
    for &offset in offsets {
        let offset = offset % built.size;
        let Ok(extent) = map.extent_at(&bytes, offset) else { continue };
        prop_assert!(extent.len_bytes > 0 && extent.start <= offset, "{:?}", extent);
        let end = extent.start.checked_add(extent.len_bytes).unwrap();
        prop_assert!(offset < end && end <= built.size, "{:?}", extent);
        match extent.mapping {
            Mapping::Compressed(cluster) => {
                prop_assert!(extent.len_bytes <= 12 << 20);
                prop_assert!((1..=1 << 20).contains(&cluster.len_bytes));
                prop_assert!(built.context.algorithms & 1 << cluster.algorithm as u8 != 0);
            }
            Mapping::Plain(_) => prop_assert!(extent.len_bytes <= 1 << 20),
            Mapping::Interlaced { len_bytes, at } => {
                prop_assert_eq!(len_bytes, 1 << built.context.block_bits);
                prop_assert!(at.offset % u64::from(len_bytes) == 0 && extent.len_bytes <= len_bytes.into());
            }
            Mapping::Fragment { offset } => prop_assert!(offset.checked_add(extent.len_bytes).is_some()),
            Mapping::Hole => {}
        }
        // A lookup of the extent's start finds the same extent, which caches of extents rely on.
        prop_assert_eq!(map.extent_at(&bytes, extent.start).unwrap(), extent);
    }
    Ok(())
}

fn change(built: &mut Built, changes: &[(u64, u8)]) {
    let from = built.tail.offset;
    let len = built.data.len() as u64 - from;
    for &(position, value) in changes {
        built.data[(from + position % len) as usize] = value;
    }
}

fn changes() -> impl Strategy<Value = Vec<(u64, u8)>> {
    // Many changes are in the header and the first entries.
    let position = prop_oneof![1 => 0..16_u64, 1 => 0..200_u64, 3 => any::<u64>()];
    proptest::collection::vec((position, any::<u8>()), 1..12)
}

fn offsets() -> impl Strategy<Value = Vec<u64>> {
    let near = (any::<u64>(), 0..64_u8).prop_map(|(n, bits)| n >> bits);
    proptest::collection::vec(near, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(700))]

    #[test]
    fn changed_indexes_yield_errors_or_extents_within_limits(
        spec in spec(), changes in changes(), offsets in offsets()
    ) {
        let mut built = spec.build();
        change(&mut built, &changes);
        look_up(&built, &offsets)?;
    }

    #[test]
    fn changed_records_yield_errors_or_extents_within_limits(
        spec in spec(), bits in 0..4_u8, changes in changes(), offsets in offsets()
    ) {
        let tail = if matches!(spec.tail, Tail::Inline(_)) { Tail::None } else { spec.tail };
        let mut built = records(&Spec { tail, ..spec }, bits);
        change(&mut built, &changes);
        look_up(&built, &offsets)?;
    }

    #[test]
    fn random_bytes_yield_errors_or_extents_within_limits(
        data in proptest::collection::vec(any::<u8>(), 0..2000),
        full in any::<bool>(),
        extent_records in any::<bool>(),
        block_bits in 9..=16_u8,
        offset in prop_oneof![Just(0_u64), 0..100_u64, u64::MAX - 100..u64::MAX],
        size in prop_oneof![1..100_000_u64, 1..1_u64 << 40, 1..=u64::MAX],
        offsets in offsets(),
    ) {
        let form = if full { IndexForm::Full } else { IndexForm::Compact };
        let context = ZContext { extent_records, ..context(block_bits, true) };
        let tail = Address::image(offset);
        look_up(&Built { data, context, form, tail, size, extents: Vec::new() }, &offsets)?;
    }
}
