//! Rules of the device table.

use super::context::Strict;
use super::spaces::SpaceUse;
use pagefold_image::format::device::RawDeviceSlot;
use pagefold_image::format::features::incompat;
use pagefold_image::{Address, Result, rules};

/// Judges the slots. Their ranges of the shared space are compared in ascending order.
pub(super) fn check(strict: &mut Strict<'_>) -> Result<()> {
    if !strict.has_incompat(incompat::DEVICE_TABLE) {
        return Ok(());
    }
    let len = RawDeviceSlot::LEN as u64;
    let table = Address::image(u64::from(strict.raw.devt_slotoff.get()) * len);
    let mut ranges = vec![(0, strict.image.superblock().blocks, table)];
    for number in 0..u64::from(strict.raw.extra_devices.get()) {
        let at = Address::image(table.offset + number * len);
        let slot = RawDeviceSlot::parse(&strict.array(at)?);
        let long = |hi: u16, lo: u32| u64::from(hi) << 32 | u64::from(lo);
        if slot.reserved.iter().any(|byte| *byte != 0) {
            let what = format!("reserved bytes in the slot of device {}", number + 1);
            strict.fault(&rules::SB_RESERVED, at, what);
        }
        let start = long(slot.uniaddr_hi.get(), slot.uniaddr_lo.get());
        if start != 0 {
            ranges.push((start, long(slot.blocks_hi.get(), slot.blocks_lo.get()), at));
        }
    }
    ranges.sort_by_key(|(start, _, _)| *start);
    for pair in ranges.windows(2) {
        let [(start, blocks, _), (next, _, at)] = *pair else { continue };
        if start.saturating_add(blocks) > next {
            let what =
                format!("blocks from {next} on are also in the range of {blocks} blocks from {start} on");
            strict.fault(&rules::DEVICE_OVERLAP, at, what);
        }
    }
    let bytes = u64::from(strict.raw.extra_devices.get()) * len;
    strict.claim(SpaceUse::Metadata, table, bytes);
    Ok(())
}
