//! [`OpenFile`]: reads and writes of one opened file, as sysfs answers them.
//!
//! A read from the beginning calls the disk and takes a snapshot of its answer; a read further on continues that
//! snapshot. Each write is one store: sysfs takes a page of it at most, and ignores the offset.
//!
//! The two files of debugfs refuse writes, and `block_state` is read in pieces.

use super::read_slots::ReadSlots;
use super::states::StateText;
use crate::classes;
use crate::disks::{Disks, Errno};
use std::sync::{Mutex, PoisonError};

/// The length that sysfs reports for every file, and the most bytes that it takes of one write.
pub const PAGE_BYTES: usize = 4096;

/// The meaning of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An attribute of a disk.
    Attribute {
        /// The number of the disk.
        number: u32,
        /// The name of the attribute.
        name: &'static str,
    },
    /// `hot_add`: a read creates a disk.
    HotAdd,
    /// `hot_remove`: a write removes a disk.
    HotRemove,
    /// The states of a disk's pages.
    BlockState {
        /// The number of the disk.
        number: u32,
    },
    /// The size classes of a disk's pool.
    Classes {
        /// The number of the disk.
        number: u32,
    },
}

/// An open file.
pub struct OpenFile {
    target: Target,
    snapshot: Mutex<Vec<u8>>,
    states: Mutex<StateText>,
}

impl OpenFile {
    /// Opens the file with this meaning.
    pub fn new(target: Target) -> Self {
        OpenFile { target, snapshot: Mutex::default(), states: Mutex::default() }
    }

    /// Reads at most `len` bytes at `offset`. While the disk is called, a lock is held only for the states of pages, whose
    /// reads follow each other anyway.
    pub fn read(
        &self,
        disks: &dyn Disks,
        slots: &ReadSlots,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Errno> {
        if let Target::BlockState { number } = self.target {
            let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
            return slots.run(|| states.read(disks, number, offset, len));
        }
        if offset == 0 {
            let text = match self.target {
                Target::Attribute { number, name } => line(slots.run(|| disks.read(number, name))?),
                Target::HotAdd => format!("{}\n", disks.hot_add()?),
                Target::Classes { number } => classes::text(&slots.run(|| disks.classes(number))?),
                Target::HotRemove | Target::BlockState { .. } => return Err(Errno(libc::EIO)),
            };
            *self.lock() = text.into_bytes();
        }
        let snapshot = self.lock();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(snapshot.len());
        let end = start.saturating_add(len).min(snapshot.len());
        Ok(snapshot[start..end].to_vec())
    }

    /// Stores what was written, and returns how many bytes of it were taken.
    pub fn write(&self, disks: &dyn Disks, data: &[u8]) -> Result<usize, Errno> {
        let taken = &data[..data.len().min(PAGE_BYTES)];
        // The kernel passes a string on, which ends at the first zero.
        let text = taken.split(|&b| b == 0).next().unwrap_or_default();
        let text = std::str::from_utf8(text).map_err(|_| Errno(libc::EINVAL))?;
        match self.target {
            Target::Attribute { number, name } => disks.write(number, name, text)?,
            Target::HotRemove => disks.hot_remove(parse_number(text)?)?,
            Target::HotAdd => return Err(Errno(libc::EIO)),
            Target::BlockState { .. } | Target::Classes { .. } => return Err(Errno(libc::EINVAL)),
        }
        Ok(taken.len())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value as the text of a file: one that is empty has no line.
fn line(value: String) -> String {
    if value.is_empty() { value } else { value + "\n" }
}

/// Parses the number of a device as the kernel does: decimal, with a sign if wanted, and one newline at most.
fn parse_number(text: &str) -> Result<u32, Errno> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Errno(libc::EINVAL));
    }
    let number: i32 = text.parse().map_err(|_| Errno(libc::ERANGE))?;
    u32::try_from(number).map_err(|_| Errno(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed_as_the_kernel_does() {
        for (text, number) in
            [("0", 0), ("7\n", 7), ("+7", 7), ("007", 7), ("-0", 0), ("2147483647", i32::MAX)]
        {
            assert_eq!(parse_number(text), Ok(number as u32), "{text:?}");
        }
        for text in ["", "\n", "-", "x", "7 ", " 7", "7\n\n", "0x7", "-1", "7 8", "--7"] {
            assert_eq!(parse_number(text), Err(Errno(libc::EINVAL)), "{text:?}");
        }
        for text in ["2147483648", "99999999999999999999", "-2147483649"] {
            assert_eq!(parse_number(text), Err(Errno(libc::ERANGE)), "{text:?}");
        }
    }
}
