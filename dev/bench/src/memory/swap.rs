//! The swap area on zram that the kernel's side uses.

use crate::output;
use crate::zram;
use anyhow::Context;
use pagefold_page::{PAGE_SIZE, Page};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A swap area on the zram device. Dropping it ends swapping and restores the device.
///
/// `None` only after a failed `swapoff`: then the device must not be reset.
pub struct SwapArea(Option<zram::Configured>);

impl SwapArea {
    /// Configures the zram device and makes the kernel swap to it. Fails if the device is in use, or without root.
    ///
    /// Fails also if there is another swap area, because the kernel would use both.
    pub fn new(len_bytes: u64) -> anyhow::Result<Self> {
        let others = pagefold_sys::swap::areas()?;
        if let Some(other) = others.first() {
            anyhow::bail!("this machine already swaps to {}", other.path.display());
        }
        let configured = zram::Configured::take(len_bytes)?;
        let device = Path::new(zram::DEVICE);
        let header = header(len_bytes / PAGE_SIZE as u64)?;
        std::fs::OpenOptions::new()
            .write(true)
            .custom_flags(rustix::fs::OFlags::SYNC.bits() as i32)
            .open(device)
            .and_then(|mut file| file.write_all(&header))
            .with_context(|| format!("writing a swap header to {}", device.display()))?;
        pagefold_sys::swap::swapon(device)?;
        Ok(SwapArea(Some(configured)))
    }
}

impl Drop for SwapArea {
    fn drop(&mut self) {
        if let Err(e) = pagefold_sys::swap::swapoff(Path::new(zram::DEVICE)) {
            output::error(&format!("{e}; the device stays as it is"));
            // The device must not be reset while the kernel swaps to it.
            std::mem::forget(self.0.take());
        }
    }
}

/// Makes the first page of a swap area of version 1, as `mkswap` does: at byte 1024 the version, the number of the last
/// page and the number of bad pages, each 32 bits in the machine's byte order; at the end of the page a magic word.
fn header(len_pages: u64) -> anyhow::Result<Page> {
    const MAGIC: &[u8] = b"SWAPSPACE2";
    let last = len_pages.checked_sub(1).and_then(|last| u32::try_from(last).ok());
    let last = last.context("a swap area has 1 to 2^32 pages")?;
    let mut page = [0; PAGE_SIZE];
    for (i, word) in [1, last, 0].into_iter().enumerate() {
        page[1024 + 4 * i..][..4].copy_from_slice(&u32::to_ne_bytes(word));
    }
    page[PAGE_SIZE - MAGIC.len()..].copy_from_slice(MAGIC);
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_its_words_at_the_kernels_offsets() {
        let page = header(16).unwrap();
        assert_eq!(page[1024..1036], [1u32, 15, 0].map(u32::to_ne_bytes).concat());
        assert_eq!(&page[4086..], b"SWAPSPACE2");
        assert!(page[..1024].iter().chain(&page[1036..4086]).all(|&b| b == 0));
        assert!(header(0).is_err() && header(1 << 33).is_err());
    }
}
