//! `disk create --restore` from a server: threads of the command copy each object into a pipe, from which the server reads.
//!
//! The server parses and has no network; the command verifies lengths and digests, and parses the first bytes only. The last
//! bytes of an object are passed when its digest is right, so a server that has read all has read the right bytes.

use super::objects::{self, SavedObject, unreadable};
use crate::disk::create::DiskOptions;
use crate::disk::restore::{OpenSaved, SavedInput, config};
use pagefold_backing::ByteSource;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::Location;
use pagefold_saved::TRAILER_LEN;
use pagefold_sys::signal::spawn_masked;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are read at once.
const COPY_LEN: usize = 512 << 10;

/// The copying of objects into pipes. It ends with the process, or when the server closes the pipes.
#[derive(Debug, Clone, Default)]
pub struct Fetching(Arc<Mutex<Option<CliError>>>);

impl Fetching {
    /// The first failure, which explains why the server found an end too early.
    pub fn failure(&self) -> Option<CliError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fail(&self, e: CliError) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
    }
}

/// Opens a saved disk on a server for a disk with these options. Starts threads.
pub fn open(location: &Location, args: &DiskOptions) -> Result<OpenSaved> {
    begin(location, objects::open(location)?, args)
}

/// As [`open`]; `None` if the object is missing.
pub fn open_if_exists(location: &Location, args: &DiskOptions) -> Result<Option<OpenSaved>> {
    objects::find(location)?.map(|found| begin(location, found, args)).transpose()
}

fn begin(location: &Location, objects: Vec<SavedObject>, args: &DiskOptions) -> Result<OpenSaved> {
    let newest = objects.first().ok_or_else(|| CliError::failed("a chain without objects"))?;
    let head = newest.head()?;
    if head.parent().is_some() && objects.len() == 1 {
        let what =
            "it is an incremental save, which needs the objects beside it; name the manifest of its bucket";
        return Err(CliError::usage(format!("--restore: '{location}': {what}")));
    }
    let parents = objects[1..].iter().map(|object| object.path.clone()).collect();
    let config = config(Path::new(&newest.path), &head, parents, args);
    let fetching = Fetching::default();
    let mut pipes = Vec::new();
    // Each has its own thread: the server reads the beginnings of all before the rest of the first.
    for (n, object) in objects.into_iter().enumerate() {
        let begin = if n == 0 { head.as_bytes().len() } else { 0 };
        pipes.push(start(object, begin as u64, &fetching)?);
    }
    let mut pipes = pipes.into_iter();
    let file = pipes.next().ok_or_else(|| CliError::failed("a chain without objects"))?;
    let mut input = SavedInput::of_pipe(file, pipes.collect());
    input.fetching = Some(fetching);
    Ok(OpenSaved { input, config, size_bytes: head.len_bytes() })
}

/// Starts a thread that copies an object from byte `begin` on; returns the end of the pipe that is read.
fn start(object: SavedObject, begin: u64, fetching: &Fetching) -> Result<File> {
    let failed = |e: std::io::Error| CliError::io("starting to fetch the saved disk", &e);
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    let fetching = fetching.clone();
    // Signals are for the thread that cleans up.
    let spawned = spawn_masked(std::thread::Builder::new().name("fetch".into()), move || {
        let mut writer = writer;
        if let Err(e) = copy(&object, begin, &mut writer) {
            // Before the server finds the end of the pipe.
            fetching.fail(e);
        }
    });
    spawned.map_err(failed)?;
    Ok(OwnedFd::from(reader).into())
}

fn copy(object: &SavedObject, begin: u64, pipe: &mut PipeWriter) -> Result<()> {
    let len = object.source.len_bytes();
    let end = len.saturating_sub(TRAILER_LEN as u64);
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; COPY_LEN]);
    let mut at = 0;
    // The beginning that was passed already is a part of the digest.
    let mut part_end = begin.min(end);
    while at < end {
        if at == part_end {
            part_end = end;
        }
        let piece = &mut buffer[..(part_end - at).min(COPY_LEN as u64) as usize];
        read(object, at, piece)?;
        digest.update(&*piece);
        // Of a server that has failed, its own error says more.
        if at >= begin && pipe.write_all(piece).is_err() {
            return Ok(());
        }
        at += piece.len() as u64;
    }
    let mut trailer = vec![0; (len - end) as usize];
    read(object, end, &mut trailer)?;
    let digest: [u8; 32] = digest.finalize().into();
    let stated = object.stated.as_ref().map(|stated| stated.sha256_bytes());
    let stated = stated.or_else(|| trailer.get(64..96).and_then(|bytes| bytes.try_into().ok()));
    if stated != Some(digest) {
        let what = "its bytes have another digest than they should: it is damaged or incomplete";
        return Err(CliError::new(Exit::Damaged, format!("'{}': {what}", object.path.display())));
    }
    let _ = pipe.write_all(&trailer);
    Ok(())
}

fn read(object: &SavedObject, at: u64, bytes: &mut [u8]) -> Result<()> {
    object.source.read_at(at, bytes).map_err(|e| {
        let e = unreadable(&object.path.display(), &e);
        match object.stated {
            // The next full save removes the objects of the one before.
            Some(_) => {
                CliError { message: format!("{e}; if another save has replaced the object, try again"), ..e }
            }
            None => e,
        }
    })
}
