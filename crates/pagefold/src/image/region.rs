//! The part of a file or device that an image is written to, which may have more than the image.

use pagefold_image_build::{BLOCK_BYTES, ImageFile};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

/// The part of a file or device that an image is written to.
pub struct Region<'a> {
    pub file: &'a File,
    /// Where the image begins.
    pub offset_bytes: u64,
    /// Whether the file has nothing but the image. Otherwise it keeps its length.
    pub is_whole_file: bool,
}

impl ImageFile for Region<'_> {
    fn set_len(&self, len_bytes: u64) -> std::io::Result<()> {
        match self.is_whole_file {
            true => self.file.set_len(len_bytes),
            // An image that was there must not be taken for one as soon as it is overwritten.
            false => self.write_all_at(&[0; BLOCK_BYTES as usize], 0),
        }
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        let at = self.offset_bytes.checked_add(offset).ok_or(ErrorKind::FileTooLarge)?;
        FileExt::write_all_at(self.file, bytes, at)
    }
}
