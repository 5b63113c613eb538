//! How much a command prints of the contents of an image at most.
//!
//! An image of a few kilobytes can say that it holds 2^62 bytes, in holes or in clusters that many files share. Where the output
//! is a file, the limit is what there is room for, as for extraction into a directory. A pipe says nothing about room, so
//! there the limit is what an image of that size can hold without saying anything twice.

use crate::failure::{Failure, Outcome};
use pagefold_image::Image;
use pagefold_image::read::extent::MAX_DECODED_BYTES;
use pagefold_page::size;
use pagefold_sys::beneath;

/// Every image may print so much.
const LEAST_BYTES: u64 = 1 << 30;
/// How much longer than stored the contents can be at most: a block of 4096 bytes decodes to no more than 12 MiB.
const EXPANSION: u64 = MAX_DECODED_BYTES / 4096;

/// The bytes that may be printed: those that the user asked for, or a default.
pub fn max_bytes(asked: Option<&str>, image: &Image) -> Outcome<u64> {
    match asked {
        Some(text) => size::parse(text).map_err(|e| Failure::usage(format!("--max-bytes: {e}"))),
        None => Ok(room_of_stdout().unwrap_or_else(|| of_stored(image.media_bytes()))),
    }
}

fn of_stored(media_bytes: u64) -> u64 {
    media_bytes.saturating_mul(EXPANSION).max(LEAST_BYTES)
}

/// Nine tenths of what is free where standard output goes; `None` if that is not a regular file.
fn room_of_stdout() -> Option<u64> {
    let stdout = std::io::stdout();
    let stat = rustix::fs::fstat(&stdout).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    let room = beneath::room(&stdout).ok().filter(|_| is_file)?;
    Some(room.free_bytes / 10 * 9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_image_may_print_a_gibibyte_and_a_large_one_what_it_can_hold() {
        assert_eq!(of_stored(12_288), 1 << 30);
        assert_eq!(of_stored(16 << 20), 48 << 30);
        assert_eq!(of_stored(u64::MAX), u64::MAX);
    }
}
