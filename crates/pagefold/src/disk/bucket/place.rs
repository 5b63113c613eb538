//! The place of a saved disk in a bucket: the key of its manifest, what is there, and the objects beside it.

use super::manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestKey};
use pagefold_bucket::{Bucket, BucketError, SmallObject, Target, Verdict};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::protocol::ParentSave;
use pagefold_saved::CHAIN_FILES_MAX;
use std::io::{Cursor, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Where the identity ends in the header of a saved disk, and how long it is.
const ID_END: usize = 64;
const ID_LEN: usize = 16;

/// The bucket, the key of the manifest, and what was there at the beginning.
pub struct Place {
    pub bucket: Bucket,
    /// The key of the manifest.
    pub key: String,
    /// The location, for messages.
    pub shown: String,
    /// The manifest that a save replaces.
    pub former: Option<Former>,
}

/// A manifest that was read.
pub struct Former {
    pub object: SmallObject,
    pub manifest: Manifest,
}

/// The error of a request for the object at `shown`.
pub fn failure(what: &str, shown: &str, e: &BucketError) -> CliError {
    let exit = match e {
        BucketError::SetUp { .. } | BucketError::Denied { .. } => Exit::Unavailable,
        BucketError::Missing { .. } => Exit::NotFound,
        BucketError::Changed => Exit::Busy,
        BucketError::Failed { .. } | BucketError::GivenUp | BucketError::Input { .. } => Exit::Failed,
        BucketError::TooLong { .. } => Exit::Damaged,
    };
    CliError::new(exit, format!("{what} '{shown}': {e}"))
}

/// Opens the bucket, and reads the manifest that is there.
pub fn open(name: &str) -> Result<Place> {
    let Target { bucket, key } = Target::open(name).map_err(|e| match e {
        BucketError::SetUp { what } => CliError::usage(format!("'{name}': {what}")),
        e => failure("opening", name, &e),
    })?;
    if !ManifestKey::of(&key).fits() {
        return Err(CliError::usage(format!("'{name}': the last part of the key has at most 222 bytes")));
    }
    let not_replaced = |what: &str| {
        let what = format!("'{name}' is not replaced: {what}; save to another key, or delete it");
        CliError::new(Exit::Busy, what)
    };
    let former = bucket.get(&key, MANIFEST_BYTES_MAX).map_err(|e| match e {
        BucketError::TooLong { .. } => not_replaced("it is too long to be a manifest of a saved disk"),
        e => failure("reading", name, &e),
    })?;
    let former = former.map(|object| {
        let manifest = Manifest::parse(&object.bytes).map_err(|what| not_replaced(&what))?;
        Ok::<_, CliError>(Former { object, manifest })
    });
    let former = former.transpose()?;
    Ok(Place { bucket, key, shown: name.to_string(), former })
}

impl Place {
    /// The parts of the key.
    pub fn names(&self) -> ManifestKey<'_> {
        ManifestKey::of(&self.key)
    }

    /// The key of the object with this name beside the manifest.
    pub fn key_of(&self, name: &str) -> String {
        format!("{}{name}", self.names().folder)
    }

    /// Uploads a saved disk as the object that its identity names; returns the name. After an error there is none.
    pub fn put(&self, mut stream: UnixStream, verdict: Verdict) -> std::result::Result<String, BucketError> {
        let mut head = [0; ID_END];
        stream.read_exact(&mut head).map_err(|e| BucketError::Input { what: e.to_string() })?;
        let mut id = [0; ID_LEN];
        id.copy_from_slice(&head[ID_END - ID_LEN..]);
        let name = self.names().object_name(id);
        let key = self.key_of(&name);
        match self.bucket.put_stream(&key, Cursor::new(head).chain(stream), verdict) {
            Ok(_) => Ok(name),
            Err(e) => {
                // Its last request may have been done.
                let _ = self.bucket.delete(&key);
                Err(e)
            }
        }
    }

    /// The save that an incremental one can go on from, or the reason why there is none.
    pub fn parent(&self) -> std::result::Result<ParentSave, String> {
        let former = self.former.as_ref().ok_or("the bucket had no saved disk of this name")?;
        let objects = &former.manifest.objects;
        let [newest, ..] = &objects[..] else { return Err("the chain was empty".into()) };
        if objects.len() >= CHAIN_FILES_MAX {
            return Err(format!("the chain had {CHAIN_FILES_MAX} objects"));
        }
        let (full, incremental) = objects.split_last().ok_or("the chain was empty")?;
        let bytes = incremental.iter().fold(0_u64, |sum, object| sum.saturating_add(object.bytes));
        if bytes >= full.bytes {
            return Err("the incremental saves had become as long as the full one".into());
        }
        Ok(ParentSave {
            id: newest.id_bytes(),
            digest: newest.sha256_bytes(),
            depth: objects.len() as u32 - 1,
            name: PathBuf::from(&newest.name),
        })
    }
}
