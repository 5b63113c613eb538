//! [`Disks`]: what the tree needs of disks. [`RunningDisks`] implements it with the servers of this machine, [`CalledDisks`] by
//! calls to another process that has these.

mod calls;
mod running;

pub use calls::{CalledDisks, answer};

pub use pagefold_control::report::disk::ClassReport;
pub use pagefold_sys::Errno;
pub use running::RunningDisks;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The disks that the tree shows, by number. Errors are error numbers, because a file can return nothing else.
///
/// Calls may take long: one that starts writeback returns when that has ended. They come from many threads.
pub trait Disks: Send + Sync {
    /// The numbers of all disks that have a device, in order.
    fn numbers(&self) -> Result<Vec<u32>, Errno>;

    /// The path of a disk's device, such as `/dev/loop3`. ENODEV: there is no such disk.
    fn device(&self, number: u32) -> Result<PathBuf, Errno>;

    /// The value of an attribute, without the last newline.
    fn read(&self, number: u32, attribute: &str) -> Result<String, Errno>;

    /// Sets an attribute as a write of `text` to its file does.
    fn write(&self, number: u32, attribute: &str, text: &str) -> Result<(), Errno>;

    /// A piece of the states of a disk's pages, lines in the format of zram's `block_state`, from page `first` on; and the
    /// page at which the next piece begins, if there is one. EINVAL: the disk has no size.
    fn block_state(&self, number: u32, first: u64) -> Result<(String, Option<u64>), Errno>;

    /// The size classes of a disk's pool that have pages.
    fn classes(&self, number: u32) -> Result<Vec<ClassReport>, Errno>;

    /// Creates a disk with the lowest free number, and returns the number when its device is there.
    fn hot_add(&self) -> Result<u32, Errno>;

    /// Removes a disk. EBUSY: it is in use.
    fn hot_remove(&self, number: u32) -> Result<(), Errno>;

    /// The names in debugfs, which is at `path` and only root may list; none if it is missing.
    fn debugfs(&self, path: &Path) -> Vec<OsString> {
        let entries = std::fs::read_dir(path).into_iter().flatten();
        entries.flatten().map(|entry| entry.file_name()).collect()
    }
}

/// The number in `zramN` or `loopN`: decimal, without a leading zero.
pub fn number_after(prefix: &str, name: &OsStr) -> Option<u32> {
    let digits = name.to_str()?.strip_prefix(prefix)?;
    let number: u32 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_devices_have_one_spelling() {
        let number = |name: &str| number_after("zram", OsStr::new(name));
        assert_eq!((number("zram0"), number("zram17")), (Some(0), Some(17)));
        for other in ["zram", "zram01", "zram+1", "zram-1", "zram1x", "zram4294967296", "loop1", "xzram1"] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
