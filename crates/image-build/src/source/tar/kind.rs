//! The types of members.

use super::sparse::SparseRun;
use pagefold_image::read::inode::DeviceNumber;

/// The types of members.
pub enum MemberKind {
    Regular(Data),
    Directory,
    Symlink(Vec<u8>),
    /// A further name of the member with this name.
    HardLink(Vec<u8>),
    CharDevice(DeviceNumber),
    BlockDevice(DeviceNumber),
    Fifo,
}

/// Where the contents of a file are.
pub struct Data {
    /// First byte in the archive.
    pub at: u64,
    /// Length of the file, bytes.
    pub len_bytes: u64,
    /// The parts of a sparse file that the archive has; `None`: the file is not sparse.
    pub runs: Option<Box<[SparseRun]>>,
}
