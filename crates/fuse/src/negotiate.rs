//! The negotiation of a mount's features and limits with the kernel (INIT).

use crate::abi::{self, InitOut};
use crate::request::Init;
use pagefold_page::PAGE_SIZE;
use std::ops::{BitAnd, BitOr};

/// Features of the kernel's FUSE: a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(pub(crate) u64);

impl Features {
    /// Sends several reads of one file at the same time.
    pub const ASYNC_READ: Self = Features(1);
    /// Serves handles of network clients.
    pub const EXPORT_SUPPORT: Self = Features(1 << 4);
    /// Writes may be longer than a page. Kernels since 4.20 ignore it.
    const BIG_WRITES: Self = Features(1 << 5);
    /// Requests entries of directories together with their attributes.
    pub const READDIRPLUS: Self = Features(1 << 13);
    /// Sends the parts of direct I/O at the same time, and completes asynchronous requests asynchronously.
    pub const ASYNC_DIO: Self = Features(1 << 15);
    /// Files need not be opened: `open` may fail with ENOSYS.
    pub const NO_OPEN: Self = Features(1 << 17);
    /// Looks names up and lists entries of one directory at the same time.
    pub const PARALLEL_DIROPS: Self = Features(1 << 18);
    /// Checks access control lists.
    pub const POSIX_ACL: Self = Features(1 << 20);
    /// The number of pages of a request can be chosen.
    const MAX_PAGES: Self = Features(1 << 22);
    /// Caches the targets of symbolic links.
    pub const CACHE_SYMLINKS: Self = Features(1 << 23);
    /// Directories need not be opened: `open_dir` may fail with ENOSYS.
    pub const NO_OPENDIR: Self = Features(1 << 24);
    /// Sends requests again that a server has read and not answered, when the next server asks for it (Linux 6.9).
    pub(crate) const HAS_RESEND: Self = Features(1 << 39);
    /// Sends requests through io_uring.
    pub(crate) const OVER_IO_URING: Self = Features(1 << 41);

    /// Its bits, as in the 64 flags of INIT.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The features with these bits.
    pub fn from_bits(bits: u64) -> Self {
        Features(bits)
    }

    /// Whether it has all bits of `other`.
    pub fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Features(self.0 | other.0)
    }
}

impl BitAnd for Features {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Features(self.0 & other.0)
    }
}

/// The kernel's offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Features that it has.
    pub features: Features,
}

/// The result of the negotiation. The kernel negotiates once in the life of a mount, so a server that takes a mount over
/// needs that of the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// The kernel's offer.
    pub offer: Offer,
    /// The choice of the first server.
    pub settings: Settings,
}

/// The choice of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Features to use. Those that the kernel lacks are left out.
    pub features: Features,
    /// Requests in the background, such as asynchronous direct I/O and read-ahead, that may be in flight.
    pub max_background: u16,
    /// Longest read, bytes; the mount option `max_read` must be the same. Over rings reads may be shorter.
    pub read_bytes: usize,
    /// Longest write, bytes. The kernel takes less than a page as a page.
    pub write_bytes: usize,
    /// Longest read-ahead, bytes, if the kernel does not offer less.
    pub readahead_bytes: usize,
    /// Bytes of each reply buffer beyond the longest read, for the file system's use.
    pub scratch_bytes: usize,
}

impl Settings {
    /// Settings for requests of at most `bytes` bytes, without scratch and special features.
    pub fn for_requests_of(bytes: usize, max_background: u16) -> Self {
        Settings {
            features: Features::default(),
            max_background,
            read_bytes: bytes,
            write_bytes: bytes,
            readahead_bytes: bytes,
            scratch_bytes: 0,
        }
    }

    /// The longest write that the kernel sends, bytes.
    pub(crate) fn longest_write(&self) -> usize {
        self.write_bytes.max(PAGE_SIZE)
    }

    /// Bytes of the buffer of an entry of a ring: for requests and replies, and never less than the kernel demands.
    pub(crate) fn ring_payload_bytes(&self) -> usize {
        self.reply_bytes().max(self.longest_write()).max(abi::RECEIVE_BYTES_MIN).next_multiple_of(PAGE_SIZE)
    }

    /// The same settings over rings, whose entries have room for requests of `bytes` bytes. The kernel divides longer
    /// ones by the number of pages in its reply, so the mount option `max_read` may be greater.
    pub(crate) fn over_rings(mut self, bytes: usize) -> Self {
        self.features = self.features | Features::OVER_IO_URING;
        for limit in [&mut self.read_bytes, &mut self.write_bytes, &mut self.readahead_bytes] {
            *limit = (*limit).min(bytes);
        }
        self
    }

    /// Bytes of a reply buffer: room for the longest read and the scratch, and for a page of entries.
    pub(crate) fn reply_bytes(&self) -> usize {
        self.read_bytes.max(PAGE_SIZE) + self.scratch_bytes
    }
}

/// The reply to the kernel's offer for the settings of a file system.
pub(crate) fn accept(init: &Init, settings: &Settings) -> InitOut {
    let wanted = settings.features | Features::ASYNC_READ | Features::BIG_WRITES | Features::MAX_PAGES;
    let mut flags = (wanted & Features(init.flags)).0;
    let flags2 = (flags >> 32) as u32;
    if flags2 != 0 {
        flags |= abi::INIT_EXT;
    }
    let pages = settings.read_bytes.max(settings.longest_write()).div_ceil(PAGE_SIZE);
    let max_background = settings.max_background.max(1);
    InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR,
        max_readahead: init.max_readahead.min(in_u32(settings.readahead_bytes)),
        flags: flags as u32,
        max_background,
        // Three quarters: the kernel then regards the queue as congested.
        congestion_threshold: (u32::from(max_background) * 3 / 4) as u16,
        max_write: in_u32(settings.longest_write()),
        time_gran: 1,
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        flags2,
        ..InitOut::default()
    }
}

fn in_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init(flags: u64) -> Init {
        Init { major: 7, minor: 45, max_readahead: 128 << 10, flags }
    }

    #[test]
    fn features_that_the_kernel_lacks_are_left_out() {
        let settings = Settings {
            features: Features::ASYNC_DIO | Features(1 << 41),
            ..Settings::for_requests_of(1 << 20, 256)
        };
        let reply = accept(&init(u64::MAX), &settings);
        assert_eq!(reply.flags, 1 | 1 << 5 | 1 << 15 | 1 << 22 | 1 << 30);
        assert_eq!((reply.flags2, reply.major, reply.minor), (1 << 9, 7, 42));
        let reply = accept(&init(u64::from(u32::MAX) & !(1 << 15)), &settings);
        assert_eq!((reply.flags, reply.flags2), (1 | 1 << 5 | 1 << 22, 0));
    }

    #[test]
    fn limits_are_those_of_the_settings() {
        let reply = accept(&init(u64::MAX), &Settings::for_requests_of(1 << 20, 256));
        assert_eq!((reply.max_write, reply.max_pages, reply.max_readahead), (1 << 20, 256, 128 << 10));
        assert_eq!((reply.max_background, reply.congestion_threshold, reply.time_gran), (256, 192, 1));
        let reads = Settings { write_bytes: 0, ..Settings::for_requests_of(64 << 10, 0) };
        let reply = accept(&init(u64::MAX), &reads);
        assert_eq!((reply.max_write, reply.max_pages, reply.max_readahead), (4096, 16, 64 << 10));
        assert_eq!(reply.max_background, 1);
    }

    #[test]
    fn rings_shorten_requests_and_never_lengthen_them() {
        let settings = Settings::for_requests_of(1 << 20, 256);
        let short = settings.over_rings(128 << 10);
        let reply = accept(&init(u64::MAX), &short);
        assert_eq!((reply.max_write, reply.max_pages, reply.flags2), (128 << 10, 32, 1 << 9));
        assert_eq!((short.read_bytes, short.ring_payload_bytes()), (128 << 10, 128 << 10));
        let same = Settings { features: Features::OVER_IO_URING, ..settings };
        assert_eq!(settings.over_rings(2 << 20), same);
    }
}
