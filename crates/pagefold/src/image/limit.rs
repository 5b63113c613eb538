//! The limit on the contents of an image that a command writes as one stream, against decompression bombs.
//!
//! An image of a few kilobytes can have 2^62 bytes of contents, in holes or in clusters that many files share. If the
//! output is a file, the default limit depends on the free space, as for extraction into a directory. For a pipe it is
//! the most that an image of this size can hold without storing anything twice.

use crate::cli::values;
use pagefold_control::error::Result;
use pagefold_image::Image;
use pagefold_image::read::extent::MAX_DECODED_BYTES;
use pagefold_sys::beneath;
use std::os::fd::{AsFd, BorrowedFd};

/// Smallest limit for a pipe.
const MIN_BYTES: u64 = 1 << 30;
/// Highest ratio of contents to stored bytes: a block of 4096 bytes decodes to at most 12 MiB.
const MAX_EXPANSION: u64 = MAX_DECODED_BYTES / 4096;

/// The limit in bytes: `chosen` by the user (`--max-bytes`), or a default for this output.
pub fn max_bytes(chosen: Option<&str>, image: &Image, output: impl AsFd) -> Result<u64> {
    match chosen {
        Some(text) => values::bytes("--max-bytes", text),
        None => Ok(free_share(output.as_fd()).unwrap_or_else(|| pipe_limit(image.media_bytes()))),
    }
}

fn pipe_limit(media_bytes: u64) -> u64 {
    media_bytes.saturating_mul(MAX_EXPANSION).max(MIN_BYTES)
}

/// Nine tenths of the free space of the output's file system; `None` if the output is not a regular file.
fn free_share(output: BorrowedFd<'_>) -> Option<u64> {
    let stat = rustix::fs::fstat(output).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    let space = beneath::free_space(output).ok().filter(|_| is_file)?;
    Some(space.free_bytes / 10 * 9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_pipe_grows_with_the_image_from_a_gibibyte() {
        assert_eq!(pipe_limit(12_288), 1 << 30);
        assert_eq!(pipe_limit(16 << 20), 48 << 30);
        assert_eq!(pipe_limit(u64::MAX), u64::MAX);
    }
}
