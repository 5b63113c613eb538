//! Rules of the configuration records.

use super::context::Strict;
use super::spaces::SpaceUse;
use pagefold_image::format::config::{self, RawDeflateConfig, RawLz4Config, RawLzmaConfig, RawZstdConfig};
use pagefold_image::format::features::incompat;
use pagefold_image::format::superblock::{self as disk, RawSuperblock};
use pagefold_image::read::Algorithm;
use pagefold_image::{Address, Result, rules};

/// Judges the records, and sets the limits of `strict`.
pub(super) fn check(strict: &mut Strict<'_>) -> Result<()> {
    let raw = strict.raw;
    let mut at = disk::OFFSET + RawSuperblock::LEN as u64 + u64::from(raw.sb_extslots) * disk::EXTSLOT_LEN;
    let begin = at;
    if !strict.has_incompat(incompat::COMPR_CFGS) {
        if raw.u1.get() != 0 {
            strict.limits.lz4_window = raw.u1.get().into();
        }
        return Ok(());
    }
    strict.limits.algorithms = raw.u1.get();
    for number in (0..16).filter(|number| raw.u1.get() & 1 << number != 0) {
        let Some(algorithm) = Algorithm::from_number(number) else { return Ok(()) };
        let start = at.next_multiple_of(config::RECORD_ALIGN);
        let gap_is_zero = strict.is_zero(Address::image(at), start - at)?;
        let len = u64::from(u16::from_le_bytes(strict.array(Address::image(start))?));
        let body = Address::image(start + 2);
        let (wanted, rest_is_zero) = record(strict, algorithm, body)?;
        if len != wanted as u64 || !rest_is_zero || !gap_is_zero {
            let what =
                format!("the record of {algorithm:?} has {len} bytes instead of {wanted}, or bytes not zero");
            strict.fault(&rules::CFG_RECORD, body, what);
        }
        at = start + 2 + len;
    }
    strict.claim(SpaceUse::Metadata, Address::image(begin), at - begin);
    Ok(())
}

/// Reads one record; returns its right length, and whether its reserved bytes are zero.
fn record(strict: &mut Strict<'_>, algorithm: Algorithm, at: Address) -> Result<(usize, bool)> {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    Ok(match algorithm {
        Algorithm::Lz4 => {
            let raw = RawLz4Config::parse(&strict.array(at)?);
            if raw.max_distance.get() != 0 {
                strict.limits.lz4_window = raw.max_distance.get().into();
            }
            let blocks = u64::from(raw.max_pclusterblks.get().max(1));
            strict.limits.lz4_cluster = blocks << strict.block_bits();
            (RawLz4Config::LEN, is_zero(&raw.reserved))
        }
        Algorithm::MicroLzma => {
            let raw = RawLzmaConfig::parse(&strict.array(at)?);
            (RawLzmaConfig::LEN, is_zero(&raw.reserved))
        }
        Algorithm::Deflate => {
            let raw = RawDeflateConfig::parse(&strict.array(at)?);
            strict.limits.deflate_window = 1 << raw.windowbits.min(config::DEFLATE_WINDOW_BITS_MAX);
            (RawDeflateConfig::LEN, is_zero(&raw.reserved))
        }
        Algorithm::Zstd => {
            let raw = RawZstdConfig::parse(&strict.array(at)?);
            strict.limits.zstd_window = 1 << (raw.windowlog.min(20) + config::ZSTD_WINDOW_LOG_BASE);
            (RawZstdConfig::LEN, is_zero(&raw.reserved))
        }
    })
}
