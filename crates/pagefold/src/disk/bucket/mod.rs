//! Saved disks in buckets, and saved files on servers.
//!
//! In a bucket the key that a user names is a small manifest, which names the objects with the pages, each with a unique
//! name, beside it. `docs/formats/saved-disk.md` has the fields. Objects are written before the manifest that names them, and
//! removed after one that does not: a reader of a manifest finds its objects.
//!
//! | module | contents |
//! |---|---|
//! | `save` | `disk save` to a bucket; needs the feature `buckets` |
//! | `publish` | the end of a save: replaces the manifest, and removes what nothing names any more; needs the feature `buckets` |
//! | `clean` | `disk saved --clean`; needs the feature `buckets` |
//! | `place` | the key of a manifest, what is there, and the objects beside it; needs the feature `buckets` |
//! | `interrupt` | waiting for threads until a signal; needs the feature `buckets` |
//! | `restore` | `disk create --restore` from a server |
//! | `show` | `disk saved` of what is on a server |
//! | `objects` | opening what is on a server: a manifest and its objects, or one saved disk, by the fetcher's process |
//! | `manifest` | the manifest, and the names beside it |
//!
//! Each module uses only those below it in this table. Reading needs no feature: it is that of images.

#[cfg(feature = "buckets")]
mod clean;
#[cfg(feature = "buckets")]
mod interrupt;
#[cfg_attr(not(feature = "buckets"), allow(dead_code, reason = "only saves write manifests"))]
mod manifest;
mod objects;
#[cfg(feature = "buckets")]
mod place;
#[cfg(feature = "buckets")]
mod publish;
mod restore;
#[cfg(feature = "buckets")]
mod save;
mod show;

#[cfg(feature = "buckets")]
pub use clean::run as clean;
#[cfg(feature = "buckets")]
pub use save::to_bucket;

pub use restore::{Fetching, open, open_if_exists};
pub use show::run as show;

use pagefold_control::error::{CliError, Result};
use pagefold_control::media::Location;
use std::path::Path;

/// The location of a saved disk, if it is on a server and not a file.
pub fn location(path: &Path) -> Option<Location> {
    match Location::from(path.as_os_str().to_os_string()) {
        Location::File(_) => None,
        location => Some(location),
    }
}

/// The name of an object in a bucket, to which a disk can be saved.
pub fn name_of_target(location: &Location) -> Result<String> {
    let Location::Url(name) = location else { return Err(CliError::usage("it is a file")) };
    let scheme = name.split_once("://").map_or("", |(scheme, _)| scheme);
    match ["s3", "gs", "az"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        true => Ok(name.clone()),
        false => Err(CliError::usage(format!(
            "'{location}': a disk is saved to a file or to a bucket: s3://BUCKET/KEY, gs://BUCKET/OBJECT or az://CONTAINER/BLOB"
        ))),
    }
}

/// The error of a program that was built without the feature.
#[cfg(not(feature = "buckets"))]
mod without {
    use super::{CliError, Location, Result};
    use crate::disk::freeze::Freezer;
    use crate::disk::save::SaveArgs;
    use pagefold_control::error::Exit;
    use pagefold_control::report::saved::SaveReport;

    fn missing() -> CliError {
        let what = "this program was built without writing to buckets; build it with --features buckets";
        CliError::new(Exit::Unavailable, what)
    }

    pub fn to_bucket(_: &SaveArgs, _: &mut Freezer, _: &Location) -> Result<SaveReport> {
        Err(missing())
    }

    pub fn clean(_: &Location, _: u64, _: bool) -> Result<()> {
        Err(missing())
    }
}
#[cfg(not(feature = "buckets"))]
pub use without::{clean, to_bucket};
