//! Blobs of registries, whose names are the digests of all their bytes: a command that has read everything compares.
//!
//! A mount does not: it does not know when everything has been read, and programs have used the bytes by then.

use super::errors::opening;
use crate::fetcher::FetchedSource;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::Location;
use pagefold_image::with_causes;
use pagefold_remote::whole::{WholeError, WholeHash};
use std::ops::ControlFlow;
use std::sync::Arc;

/// An object whose name is the digest of all its bytes.
pub struct Blob {
    /// The name that the user chose.
    pub location: Location,
    /// The object, whose reads are not verified.
    pub source: Arc<FetchedSource>,
    /// Whether a Merkle tree verifies what readers get.
    pub is_verified: bool,
}

impl Blob {
    /// Compares all bytes with the name. `hash` has the beginning; the rest is read, most of it from memory or the cache
    /// on disk. `go_on` is called often, with the number of bytes hashed so far; `None` if it broke.
    pub fn verify(
        &self,
        hash: WholeHash,
        go_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Option<String>> {
        let location = &self.location;
        match hash.verify_rest(&*self.source, go_on) {
            Ok(digest) => Ok(Some(digest)),
            Err(WholeError::Cancelled) => Ok(None),
            Err(WholeError::Remote(e)) => {
                let opening = opening(location, &e);
                Err(CliError::new(opening.exit, format!("'{location}': {e}")))
            }
            Err(WholeError::Read(e)) => Err(CliError::new(Exit::Failed, with_causes(&e))),
        }
    }
}
