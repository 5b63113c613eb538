//! A tree from a tar archive: of v7, ustar, star, GNU tar, or pax.
//!
//! The archive is not trusted. The scan refuses members that a program could not extract, and names them; it limits the
//! memory of metadata. The tree is that which extraction into an empty directory would make: of
//! members with the same name the last one counts, and a hard link needs its target before it. Paths lead through the
//! symbolic links of the archive, and never out of its root.
//!
//! Contents stay in the archive, which is a file, and are read when the image is built. A compressed archive, or one
//! from a pipe, is first written to a temporary file (see `spool`).
//!
//! | module | contents |
//! |---|---|
//! | `archive` | the file: blocks while it is parsed, any bytes later |
//! | `split`, `placing`, `parts` | contents that are written to the image while the archive comes |
//! | `header`, `pax`, `sparse` | headers, records, maps of sparse files |
//! | `members` | the members, one after another |
//! | `kind` | the types of members |
//! | `metadata` | attributes of a member |
//! | `resolve` | paths through symbolic links |
//! | `place` | the tree |
//! | `content` | contents of a member |

mod archive;
mod content;
mod fault;
mod header;
mod kind;
mod members;
mod metadata;
mod options;
mod parts;
mod pax;
mod place;
mod placing;
mod resolve;
mod sparse;
mod split;

use super::{OnEntry, Scanned};
use crate::error::path_of;
use crate::{BuildError, Result};
use archive::Archive;
use members::{Members, Step};
pub use options::TarOptions;
pub use parts::Parts;
use place::Placer;
pub use placing::{Begun, Placing};
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Reads the names and metadata of the archive in `file`, which is not compressed and can be read at any position.
/// `path` is for messages.
pub fn scan(file: File, path: &Path, options: &TarOptions) -> Result<Scanned> {
    scan_watched(file, path, options, &mut |_| ControlFlow::Continue(()))
}

/// Like [`scan`]. `on_entry` is called for each member with their number so far, and now and then without a new one, and may
/// end it: [`BuildError::Interrupted`].
pub fn scan_watched(
    file: File,
    path: &Path,
    options: &TarOptions,
    on_entry: &mut OnEntry<'_>,
) -> Result<Scanned> {
    scan_archive(Archive::new(file, path)?, path, options, on_entry)
}

/// Like [`scan_watched`], of an archive whose contents lie in the image already.
pub fn scan_parts(
    parts: Parts,
    path: &Path,
    options: &TarOptions,
    on_entry: &mut OnEntry<'_>,
) -> Result<Scanned> {
    scan_archive(Archive::of_parts(parts, path), path, options, on_entry)
}

fn scan_archive(
    archive: Archive,
    path: &Path,
    options: &TarOptions,
    on_entry: &mut OnEntry<'_>,
) -> Result<Scanned> {
    let archive = Arc::new(archive);
    let mut members = Members::new(&archive, options.ignore_zeros);
    let mut placer = Placer::new(archive.clone(), options)?;
    let mut count = 1;
    loop {
        if on_entry(count).is_break() {
            return Err(BuildError::Interrupted);
        }
        let placed = members.step().and_then(|step| match step {
            Step::Member(member) => placer.place(*member).map(|()| Some(1)),
            Step::Nothing => Ok(Some(0)),
            Step::End => Ok(None),
        });
        match placed {
            Ok(Some(members)) => count += members,
            Ok(None) => break,
            Err(BuildError::Refused { what, .. }) => {
                let (archive, member) = (path.into(), path_of(members.current()));
                return Err(BuildError::Archive { archive, member, what });
            }
            Err(error) => return Err(error),
        }
    }
    archive.check()?;
    let mut scanned = placer.finish()?;
    scanned.notes.extend(members.note());
    Ok(scanned)
}

/// Whether bytes of the beginning of a file are that of an archive with a member.
pub fn is_archive(beginning: &[u8]) -> bool {
    beginning.first_chunk().is_some_and(members::is_header)
}
