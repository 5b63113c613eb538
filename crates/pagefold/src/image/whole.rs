//! Compares an image of a registry, of which a command has read everything, with its digest.
//!
//! The digest in a manifest is that of all bytes, so a command that reads ranges can compare it at the end only: then it
//! reads the image once more, from memory and the cache on disk, and fetches the bytes that nothing needed, and those that
//! have left the cache, which must be the same as before. Images with a Merkle tree were verified block by block, and are
//! not read again.

use crate::cli::output;
use crate::cli::progress::Bar;
use pagefold_backing::ByteSource;
use pagefold_control::error::{CliError, Result};
use pagefold_page::size::Human;
use pagefold_server::mount::media::{Blob, WholeHash};
use std::ops::ControlFlow;

/// The blobs of registries that no Merkle tree verifies.
#[derive(Default)]
pub struct WholeCheck(Vec<Blob>);

impl WholeCheck {
    /// The blobs, of which the verified ones are left out. It stands before the first read: what the others give from here
    /// on is remembered, because parts that leave the cache come a second time when the whole is hashed.
    pub fn of(blobs: Vec<Blob>) -> Result<Self> {
        let blobs: Vec<_> = blobs.into_iter().filter(|blob| !blob.is_verified).collect();
        blobs.iter().try_for_each(|blob| blob.source.remember())?;
        Ok(WholeCheck(blobs))
    }

    /// Compares them. Fails if one has another digest, or after a signal. Without a cache that has what was read, a note
    /// says that the blob was not compared: all of it would be fetched once more.
    pub fn finish(self, is_watched: bool, mut is_interrupted: impl FnMut() -> bool) -> Result<()> {
        for blob in self.0 {
            if !blob.source.is_kept() {
                output::note(&format!(
                    "the contents of '{}' were not compared with the digest of the manifest, because there is no cache on \
                     disk; `image copy` compares them",
                    blob.location
                ));
                continue;
            }
            let total = blob.source.len_bytes();
            let mut bar = Bar::new(is_watched);
            let verified = blob.verify(WholeHash::default(), &mut |done| {
                bar.show_bytes(done, total, format_args!("of {} compared with the digest", Human(total)));
                if is_interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            drop(bar);
            if verified?.is_none() {
                let what = format!("interrupted: '{}' was not compared with its digest", blob.location);
                return Err(CliError::failed(what));
            }
        }
        Ok(())
    }
}
