//! An image inside a larger file: the section that readers see, and the advice about a file that does not begin with an image.

use pagefold_backing::{ByteSource, FileBacking, Section};
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::Location;
use pagefold_image::{ImageError, find_image};
use pagefold_page::size::Human;
use std::fs::File;
use std::sync::Arc;

/// The beginning of a file that is searched for an image, bytes: headers of containers and firmware are shorter.
const SEARCHED_BYTES: u64 = 64 << 20;
/// The same of an object on a server.
const SEARCHED_REMOTE_BYTES: u64 = 1 << 20;

/// The file of an image, and the byte of it at which the image begins.
pub struct Beginning {
    file: Arc<dyn ByteSource>,
    offset_bytes: u64,
    searched_bytes: u64,
}

impl Beginning {
    /// The image at `location`, which begins at `offset_bytes` of `file`.
    pub(super) fn new(file: Arc<dyn ByteSource>, offset_bytes: u64, location: &Location) -> Self {
        let searched_bytes = match location {
            Location::File(_) => SEARCHED_BYTES,
            Location::Url(_) => SEARCHED_REMOTE_BYTES,
        };
        Beginning { file, offset_bytes, searched_bytes }
    }

    /// The error of opening the image, with the offset of an image that the file has elsewhere. Searches the file then, so the
    /// process has to be confined.
    pub fn explain(&self, error: ImageError) -> ImageError {
        let ImageError::NotAnImage { mut what } = error else { return error };
        if self.offset_bytes > 0 {
            what.to_mut().push_str(&format!(" after --offset {}", self.offset_bytes));
        }
        if let Some(advice) = advice(&self.file, self.searched_bytes) {
            what.to_mut().push_str(&advice);
        }
        ImageError::NotAnImage { what }
    }
}

/// The place of an image in a file on this machine that does not begin with one, and is no other source of a build, as the end
/// of a message. The process has to be confined.
pub fn find_in_file(file: File) -> Option<String> {
    let file: Arc<dyn ByteSource> = Arc::new(FileBacking::for_reading(file).ok()?);
    advice(&file, SEARCHED_BYTES)
}

fn advice(file: &Arc<dyn ByteSource>, searched_bytes: u64) -> Option<String> {
    Some(match find_image(file, searched_bytes)? {
        0 => "; an EROFS image begins at byte 0: leave out --offset".to_string(),
        found => format!("; an EROFS image begins at byte {found}: use --offset {found}"),
    })
}

/// The image that begins at `offset_bytes` of `file`.
pub(super) fn section(
    file: Arc<dyn ByteSource>,
    offset_bytes: u64,
    location: &Location,
) -> Result<Arc<dyn ByteSource>> {
    if offset_bytes == 0 {
        return Ok(file);
    }
    let len_bytes = file.len_bytes();
    let section = Section::new(file, offset_bytes).map_err(|_| {
        let len = Human(len_bytes);
        CliError::usage(format!("--offset {offset_bytes} is beyond the end of '{location}', which has {len}"))
    })?;
    Ok(Arc::new(section))
}
