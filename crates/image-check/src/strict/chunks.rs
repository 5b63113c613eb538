//! Rules of chunk-based files.

use super::context::Strict;
use super::flat;
use super::inode::RawInode;
use super::spaces::SpaceUse;
use pagefold_image::format::chunk::{self as disk, RawChunkIndex};
use pagefold_image::format::features::incompat;
use pagefold_image::{Address, Result, Space, rules};

/// Judges layout 4.
pub(super) fn check(strict: &mut Strict<'_>, inode: &RawInode) -> Result<()> {
    strict.uses(incompat::CHUNKED_FILE, "a file in chunks", inode.at);
    let format = inode.u as u16;
    if inode.u >> 16 != 0 || format & disk::FORMAT_RESERVED != 0 {
        let what = format!("a chunk format of {:#x}", inode.u);
        strict.fault(&rules::CHUNK_FORMAT, inode.at, what);
    }
    let chunk_bits = u32::from(strict.block_bits()) + u32::from(format & disk::FORMAT_BITS_MASK);
    let chunk_bytes = 1u64.checked_shl(chunk_bits).filter(|_| chunk_bits < 63);
    let Some(chunk_bytes) = chunk_bytes else { return Ok(()) };
    let chunks = Chunks {
        has_devices: format & disk::FORMAT_INDEXES != 0,
        is_wide: format & disk::FORMAT_WIDE != 0,
        chunk_bytes,
    };
    if chunks.is_wide {
        strict.uses(incompat::WIDE_ADDRESSES, "chunks with addresses of 48 bits", inode.at);
    }
    chunks.check(strict, inode)
}

struct Chunks {
    has_devices: bool,
    is_wide: bool,
    chunk_bytes: u64,
}

impl Chunks {
    fn check(&self, strict: &mut Strict<'_>, inode: &RawInode) -> Result<()> {
        let entry_bytes = if self.has_devices { RawChunkIndex::LEN } else { disk::BLOCK_ENTRY_LEN } as u64;
        let first = Address { offset: inode.tail.offset.next_multiple_of(entry_bytes), ..inode.tail };
        if !strict.is_zero(inode.tail, first.offset - inode.tail.offset)? {
            strict.fault(&rules::CHUNK_ENTRY, inode.tail, "bytes before the first entry are not zero");
        }
        let count = inode.size.div_ceil(self.chunk_bytes);
        let end = first.offset.saturating_add(count.saturating_mul(entry_bytes));
        for number in 0..count {
            let Some(at) = first.checked_add(number * entry_bytes) else { return Ok(()) };
            let start = number * self.chunk_bytes;
            let len = self.chunk_bytes.min(inode.size - start);
            if let Some(data) = self.entry(strict, at)? {
                self.claim(strict, data, len)?;
            }
        }
        inode.claim(strict, end);
        Ok(())
    }

    /// Judges an entry, and returns the address of its chunk; `None` for a hole.
    fn entry(&self, strict: &Strict<'_>, at: Address) -> Result<Option<Address>> {
        let block_bytes = strict.block_bytes();
        let address = |block: u64, device| {
            let offset = block.checked_mul(block_bytes)?;
            Some(Address { space: Space::Device(device), offset })
        };
        if !self.has_devices {
            let block = u32::from_le_bytes(strict.array(at)?);
            return Ok(if block == disk::HOLE { None } else { address(block.into(), 0) });
        }
        let raw = RawChunkIndex::parse(&strict.array(at)?);
        let (high, low, device) = (raw.startblk_hi.get(), raw.startblk_lo.get(), raw.device_id.get());
        let is_hole = low == disk::HOLE && (!self.is_wide || high == u16::MAX);
        if is_hole {
            return Ok(None);
        }
        if !self.is_wide && high != 0 {
            strict.fault(&rules::CHUNK_ENTRY, at, "upper bits of an address in an entry without them");
        }
        if device > strict.raw.extra_devices.get() {
            let what = format!("device {device} of {}", strict.raw.extra_devices.get());
            strict.fault(&rules::CHUNK_ENTRY, at, what);
        }
        let high = if self.is_wide { u64::from(high) << 32 } else { 0 };
        Ok(address(high | u64::from(low), device))
    }

    /// Claims the blocks of a chunk of `len` bytes, and judges the rest of its last block.
    fn claim(&self, strict: &mut Strict<'_>, at: Address, len: u64) -> Result<()> {
        strict.claim(SpaceUse::Plain, at, len);
        // Other devices may hold other things between files: an archive, for instance.
        let own = at.space == Space::Device(0) && strict.image.is_own(at);
        let rest = len.next_multiple_of(strict.block_bytes()) - len;
        match at.checked_add(len) {
            Some(end) if own && rest > 0 => flat::check_fill(strict, end, rest),
            _ => Ok(()),
        }
    }
}
