//! Opens what is on a server: one saved disk, or a manifest with its objects.
//!
//! The fetcher's process speaks to servers, with the deadlines, retries and logins of images, and pins the version of what it
//! opens. It is forked while this process has one thread. This process parses the manifest, which is small.

use super::manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestKey, Object};
use crate::cli::output;
use crate::disk::chain::failure;
use pagefold_backing::{BackingError, ByteSource};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::{AUTHORIZATION_VARIABLE, Location, MediaConfig, RemoteConfig, Secret};
use pagefold_saved::{Head, SavedError};
use pagefold_server::fetcher::{FetchedSource, Fetcher};
use pagefold_server::mount::media::{DEFAULT_MEMORY_BYTES, store_settings};
use std::io::{Error, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

/// The first bytes of a saved disk.
const MAGIC: &[u8; 8] = b"pgfsaved";

/// An object with a saved disk.
#[derive(Clone)]
pub struct SavedObject {
    /// Its location, for messages.
    pub path: PathBuf,
    /// Its bytes.
    pub source: Arc<FetchedSource>,
    /// Its entry in the manifest; `None` without one.
    pub stated: Option<Object>,
}

/// Opens what is at a location: the objects of the chain, the newest first.
pub fn open(location: &Location) -> Result<Vec<SavedObject>> {
    find(location)?.ok_or_else(|| {
        CliError::new(Exit::NotFound, format!("opening '{location}': there is no such object"))
    })
}

/// As [`open`]; `None` if there is no object at the location. A bucket that does not exist is an error, and so is a manifest
/// whose objects are missing.
pub fn find(location: &Location) -> Result<Option<Vec<SavedObject>>> {
    if location.is_in_registry() {
        return Err(CliError::usage(format!(
            "'{location}': a saved disk is in a bucket or on a server, not in a registry"
        )));
    }
    let remote = remote(location)?;
    let first = match open_all(vec![location.clone()], remote.clone()) {
        Err(e) if e.exit == Exit::NotFound => return Ok(None),
        first => first?,
    };
    let [source] = <[_; 1]>::try_from(first).map_err(|_| CliError::failed("the fetcher opened nothing"))?;
    let path = PathBuf::from(location.to_string());
    let len = source.len_bytes();
    let read = |len: u64| {
        let mut bytes = vec![0; len as usize];
        let read = source.read_at(0, &mut bytes);
        read.map(|()| bytes).map_err(|e| unreadable(location, &e))
    };
    if read(len.min(MAGIC.len() as u64))? == MAGIC {
        return Ok(Some(vec![SavedObject { path, source: Arc::new(source), stated: None }]));
    }
    let damaged = |what: &str| CliError::new(Exit::Damaged, format!("reading '{location}': {what}"));
    if len > MANIFEST_BYTES_MAX {
        return Err(damaged("it is neither a saved disk nor the manifest of one"));
    }
    let manifest = Manifest::parse(&read(len)?).map_err(|what| damaged(&what))?;
    let objects = open_named(location, manifest.objects, remote)?;
    // Its fetcher is of no more use.
    drop(source);
    Ok(Some(objects))
}

/// Opens the objects that a manifest names.
fn open_named(location: &Location, named: Vec<Object>, remote: RemoteConfig) -> Result<Vec<SavedObject>> {
    let Location::Url(name) = location else { return Err(CliError::failed("a manifest in a file")) };
    if name.contains(['?', '#']) || name.to_ascii_lowercase().starts_with("http") {
        let what = "a manifest is followed in buckets only: s3://, gs:// or az://; name one of its objects";
        return Err(CliError::usage(format!("'{location}': {what}")));
    }
    let folder = ManifestKey::of(name).folder;
    let locations = named.iter().map(|object| Location::Url(format!("{folder}{}", object.name)));
    let locations: Vec<_> = locations.collect();
    let sources = open_all(locations.clone(), remote).map_err(|e| CliError {
        // The manifest is there, so the disk is not missing.
        exit: if e.exit == Exit::NotFound { Exit::Failed } else { e.exit },
        message: format!(
            "'{location}' needs all its objects: {e}; if another save has replaced them, try again"
        ),
        ..e
    })?;
    let objects = locations.iter().zip(sources).zip(named).map(|((location, source), stated)| {
        if source.len_bytes() != stated.bytes {
            let (len, wanted) = (source.len_bytes(), stated.bytes);
            let message = format!("'{location}' has {len} bytes in place of the {wanted} of the manifest");
            return Err(CliError::new(Exit::Damaged, message));
        }
        let path = PathBuf::from(location.to_string());
        Ok(SavedObject { path, source: Arc::new(source), stated: Some(stated) })
    });
    objects.collect()
}

/// Lets a fetcher open these objects.
fn open_all(locations: Vec<Location>, remote: RemoteConfig) -> Result<Vec<FetchedSource>> {
    let count = locations.len();
    let mut locations = locations.into_iter();
    let image = locations.next().ok_or_else(|| CliError::failed("nothing is to be opened"))?;
    let media = MediaConfig { image, offset_bytes: 0, devices: locations.collect(), verity: None, remote };
    let fetcher = Fetcher::start(&media, DEFAULT_MEMORY_BYTES, output::note)?;
    let fetcher = fetcher.ok_or_else(|| CliError::failed("nothing is on a server"))?;
    (0..count).map(|medium| fetcher.open_medium(medium)).collect()
}

/// How servers are asked: with the user's credentials, and without a cache on disk, because all is read once.
fn remote(location: &Location) -> Result<RemoteConfig> {
    let authorization = std::env::var(AUTHORIZATION_VARIABLE).ok().map(Secret);
    let stores = store_settings(std::iter::once(location), None, false, output::note)?;
    Ok(RemoteConfig { authorization, stores, takes_whole: true, ..RemoteConfig::default() })
}

/// The error for an object that cannot be read.
pub fn unreadable(location: &impl std::fmt::Display, e: &BackingError) -> CliError {
    CliError::failed(format!("reading '{location}': {e}"))
}

impl SavedObject {
    /// Its first bytes, of a fixed form.
    pub fn head(&self) -> Result<Head> {
        let mut reader = self.reader();
        let head = Head::read(&mut |bytes| {
            reader.read_exact(bytes).map_err(|source| SavedError::Read { offset: 0, source })
        });
        let head = head.map_err(|e| failure(&self.path, &e))?;
        match self.stated.as_ref().is_none_or(|stated| stated.id_bytes() == head.id()) {
            true => Ok(head),
            false => Err(CliError::new(
                Exit::Damaged,
                format!("'{}' has another identity than its manifest says", self.path.display()),
            )),
        }
    }

    /// Its bytes as those of a file.
    pub fn reader(&self) -> SourceReader {
        SourceReader { source: self.source.clone(), at: 0 }
    }
}

/// An object as a file that is read.
pub struct SourceReader {
    source: Arc<FetchedSource>,
    at: u64,
}

impl Read for SourceReader {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let left = self.source.len_bytes().saturating_sub(self.at);
        let len = left.min(bytes.len() as u64) as usize;
        if len > 0 {
            let read = self.source.read_at(self.at, &mut bytes[..len]);
            read.map_err(|e| Error::other(e.to_string()))?;
        }
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for SourceReader {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.source.len_bytes().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| Error::other("a place before the beginning"))?;
        Ok(self.at)
    }
}
