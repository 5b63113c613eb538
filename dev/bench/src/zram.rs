//! The kernel's zram: `/dev/zram0` with direct I/O.
//!
//! The device is used only if it is not initialised. It is configured through sysfs and opened exclusively; dropping
//! [`Configured`] resets it and restores its algorithm.

use crate::output;
use crate::store::subject::{CODEC, Memory, Subject};
use anyhow::Context;
use pagefold_page::PAGE_SIZE;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Path of the device.
pub const DEVICE: &str = "/dev/zram0";
const ATTRIBUTES: &str = "/sys/block/zram0";
/// Bytes of a slot in the kernel's table.
const SLOT_LEN: u64 = 16;

/// The configured and opened device; restored when dropped.
pub struct Zram {
    // Declared before `_configured`, so that the device is closed before it is reset.
    file: File,
    len_bytes: u64,
    _configured: Configured,
}

/// The device after its attributes were changed; resets it and restores its algorithm when dropped.
pub struct Configured(String);

impl Zram {
    /// Configures the device for `len_bytes` bytes and opens it. Fails if the device does not exist or is in use, or
    /// without root.
    pub fn open(len_bytes: u64) -> anyhow::Result<Self> {
        let configured = Configured::take(len_bytes)?;
        // Exclusively: fails if the device is mounted, or another process has it open in the same way.
        let direct = libc::O_DIRECT | libc::O_EXCL;
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(direct)
            .open(DEVICE)
            .with_context(|| format!("opening {DEVICE} for direct I/O"))?;
        Ok(Zram { file, len_bytes, _configured: configured })
    }
}

impl Configured {
    /// Configures the device for `len_bytes` bytes. Fails if the device does not exist or is in use, or without root.
    pub fn take(len_bytes: u64) -> anyhow::Result<Self> {
        anyhow::ensure!(Path::new(ATTRIBUTES).exists(), "this kernel has no {DEVICE} (modprobe zram)");
        let in_use = read("initstate")?.trim() != "0";
        anyhow::ensure!(!in_use, "{DEVICE} is in use; if it is not needed: echo 1 > {ATTRIBUTES}/reset");
        let algorithms = read("comp_algorithm")?;
        let algorithm = algorithms.split(['[', ']']).nth(1).unwrap_or_default().to_string();
        write("comp_algorithm", CODEC)
            .with_context(|| format!("setting the codec of {DEVICE} to {CODEC} (needs root)"))?;
        // From here on, an error drops `configured`, which restores the device.
        let configured = Configured(algorithm);
        write("disksize", &len_bytes.to_string())?;
        Ok(configured)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        let restored = write("reset", "1").and_then(|()| write("comp_algorithm", &self.0));
        if let Err(e) = restored {
            output::error(&format!("{DEVICE} could not be restored: {e:#}"));
        }
    }
}

impl Subject for Zram {
    fn store(&self, at: u64, bytes: &[u8]) -> anyhow::Result<()> {
        self.file.write_all_at(bytes, at).with_context(|| format!("writing to {DEVICE}"))
    }

    fn load(&self, at: u64, bytes: &mut [u8]) -> anyhow::Result<()> {
        self.file.read_exact_at(bytes, at).with_context(|| format!("reading from {DEVICE}"))
    }

    fn memory(&self) -> anyhow::Result<Memory> {
        memory(self.len_bytes)
    }
}

/// The memory that the device uses for its pages now, with slots for `len_bytes` bytes.
pub fn memory(len_bytes: u64) -> anyhow::Result<Memory> {
    let text = read("mm_stat")?;
    let column = |i| text.split_whitespace().nth(i).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    let used = column(2);
    Ok(Memory { original: column(0), used, with_slots: used + len_bytes / PAGE_SIZE as u64 * SLOT_LEN })
}

fn read(attribute: &str) -> anyhow::Result<String> {
    let path = format!("{ATTRIBUTES}/{attribute}");
    std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))
}

fn write(attribute: &str, value: &str) -> anyhow::Result<()> {
    let path = format!("{ATTRIBUTES}/{attribute}");
    std::fs::write(&path, value).with_context(|| format!("writing '{value}' to {path}"))
}
