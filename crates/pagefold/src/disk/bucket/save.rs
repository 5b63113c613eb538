//! `disk save` to a bucket.
//!
//! The server writes to a socket, and a thread uploads its bytes as an object with a unique name. When the server has
//! reported success, the object is completed; then the manifest is replaced, if it is still the one that was read at the
//! beginning; then the objects that only the former manifest named are removed. A failure at any point leaves the former
//! manifest with all its objects.

use super::manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestKey, Object};
use super::name_of_target;
use crate::cli::output;
use crate::disk::freeze::Freezer;
use crate::disk::save::{SOCKET_TIMEOUT, SaveArgs, save};
use pagefold_bucket::{Bucket, BucketError, Condition, Go, SmallObject, Target, Verdict, verdict};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::Location;
use pagefold_control::protocol::{IncrementalSave, ParentSave};
use pagefold_control::report::saved::SaveReport;
use pagefold_saved::CHAIN_FILES_MAX;
use pagefold_sys::signal::Termination;
use std::fs::File;
use std::io::{Cursor, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Where the identity ends in the header of a saved disk, and how long it is.
const ID_END: usize = 64;
const ID_LEN: usize = 16;
/// Attempts to write the manifest, if the store does not answer.
const ATTEMPTS: u32 = 3;
/// The time that an upload has to end after it was given up.
const ABORT_LIMIT: Duration = Duration::from_secs(20);

/// The bucket, the key of the manifest, and what was there at the beginning.
struct Place {
    bucket: Arc<Bucket>,
    key: String,
    /// For messages.
    shown: String,
    former: Option<Former>,
}

/// A manifest that was read.
struct Former {
    object: SmallObject,
    manifest: Manifest,
}

/// Saves a disk to a bucket.
pub fn to_bucket(args: &SaveArgs, freezer: &mut Freezer, location: &Location) -> Result<SaveReport> {
    // Before threads are started.
    let signals = Termination::listen()?;
    let name = name_of_target(location)?;
    let place = Arc::new(interruptible(&signals, move || open(&name))?);
    let (parent, full_because) = match (args.incremental, place.parent()) {
        (false, _) => (None, None),
        (true, Ok(parent)) => (Some(parent), None),
        (true, Err(reason)) => (None, Some(reason)),
    };
    let incremental = args.incremental.then_some(IncrementalSave { parent });
    let (mut report, name) = upload(args, freezer, incremental.as_ref(), &place, &signals)?;
    report.full_because = full_because.or(report.full_because.take());
    place.publish(&report, name)?;
    Ok(report)
}

/// Runs `work`, which asks the store, in a thread; a signal ends the waiting.
fn interruptible<T: Send + 'static>(
    signals: &Termination,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, done) = sync_channel(1);
    let spawned = std::thread::Builder::new().name("bucket".into()).spawn(move || {
        // Nobody waits after a signal.
        let _ = sender.send(work());
    });
    spawned.map_err(|e| CliError::io("starting a thread", &e))?;
    wait(&done, signals)?
}

/// Waits for a thread, or a signal.
fn wait<T>(done: &Receiver<T>, signals: &Termination) -> Result<T> {
    loop {
        match done.recv_timeout(SOCKET_TIMEOUT) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) if signals.take().is_some() => {
                return Err(CliError::failed("interrupted: the disk was not saved"));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(CliError::failed("the thread that writes to the bucket has panicked"));
            }
        }
    }
}

/// The error of a request for the object at `shown`.
pub fn failure(what: &str, shown: &str, e: &BucketError) -> CliError {
    let exit = match e {
        BucketError::SetUp { .. } | BucketError::Denied { .. } => Exit::Unavailable,
        BucketError::Missing { .. } => Exit::NotFound,
        BucketError::Changed => Exit::Busy,
        BucketError::Failed { .. } | BucketError::GivenUp | BucketError::Input { .. } => Exit::Failed,
    };
    CliError::new(exit, format!("{what} '{shown}': {e}"))
}

/// Opens the bucket, and reads the manifest that is there.
fn open(name: &str) -> Result<Place> {
    let Target { bucket, key } = Target::open(name).map_err(|e| match e {
        BucketError::SetUp { what } => CliError::usage(format!("'{name}': {what}")),
        e => failure("opening", name, &e),
    })?;
    if !ManifestKey::of(&key).fits() {
        return Err(CliError::usage(format!("'{name}': the last part of the key has at most 222 bytes")));
    }
    let former = bucket.get(&key, MANIFEST_BYTES_MAX).map_err(|e| failure("reading", name, &e))?;
    let former = former.map(|object| {
        let manifest = Manifest::parse(&object.bytes).map_err(|what| {
            let what = format!("'{name}' is not replaced: {what}; save to another key, or delete it");
            CliError::new(Exit::Busy, what)
        })?;
        Ok::<_, CliError>(Former { object, manifest })
    });
    let former = former.transpose()?;
    Ok(Place { bucket: Arc::new(bucket), key, shown: name.to_string(), former })
}

/// Lets the server write, and uploads that. Returns its report and the name of the object, which is complete.
fn upload(
    args: &SaveArgs,
    freezer: &mut Freezer,
    incremental: Option<&IncrementalSave>,
    place: &Arc<Place>,
    signals: &Termination,
) -> Result<(SaveReport, String)> {
    let failed = |e: std::io::Error| CliError::io("starting the upload", &e);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    theirs.set_write_timeout(Some(SOCKET_TIMEOUT)).map_err(failed)?;
    let (go, verdict) = verdict();
    let (sender, done) = sync_channel(1);
    let uploading = place.clone();
    let spawned = std::thread::Builder::new().name("upload".into()).spawn(move || {
        // The command has ended otherwise.
        let _ = sender.send(uploading.put(ours, verdict));
    });
    spawned.map_err(failed)?;
    let saved = save(args, freezer, File::from(OwnedFd::from(theirs)), incremental, signals);
    let report = match saved {
        Ok(report) => report,
        Err(e) => return Err(given_up(go, &done, e, place)),
    };
    go.go(report.figures.file_bytes);
    match wait(&done, signals) {
        Ok(Ok(name)) => Ok((report, name)),
        Ok(Err(e)) => Err(failure("writing", &place.shown, &e)),
        Err(interrupted) => Err(given_up(go, &done, interrupted, place)),
    }
}

/// Gives an upload up, and waits until it is removed. The error of the upload explains that of the server.
fn given_up(
    go: Go,
    done: &Receiver<std::result::Result<String, BucketError>>,
    e: CliError,
    place: &Place,
) -> CliError {
    drop(go);
    let end = Instant::now() + ABORT_LIMIT;
    match done.recv_timeout(end.saturating_duration_since(Instant::now())) {
        Ok(Err(BucketError::GivenUp | BucketError::Input { .. })) | Ok(Ok(_)) => e,
        Ok(Err(own)) => failure("writing", &place.shown, &own),
        Err(_) => CliError { message: format!("{e}; parts of it may stay in the bucket"), ..e },
    }
}

impl Place {
    fn names(&self) -> ManifestKey<'_> {
        ManifestKey::of(&self.key)
    }

    fn key_of(&self, name: &str) -> String {
        format!("{}{name}", self.names().folder)
    }

    /// Uploads a saved disk as the object that its identity names; returns the name. After an error there is none.
    fn put(&self, mut stream: UnixStream, verdict: Verdict) -> std::result::Result<String, BucketError> {
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
    fn parent(&self) -> std::result::Result<ParentSave, String> {
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

    /// Writes the manifest that names the object `name` first, and removes what is not needed any more.
    fn publish(&self, report: &SaveReport, name: String) -> Result<()> {
        let figures = &report.figures;
        let object = Object {
            name,
            id: figures.id.clone(),
            sha256: figures.digest.clone(),
            bytes: figures.file_bytes,
        };
        let former = self.former.as_ref().map_or(&[][..], |former| &former.manifest.objects);
        let kept = if figures.parent.is_some() { former } else { &[] };
        let manifest = Manifest::new(std::iter::once(object.clone()).chain(kept.iter().cloned()).collect());
        match self.replace(&manifest.to_bytes()) {
            Ok(()) => {}
            Err(Unpublished { error, is_known: true }) => {
                // Nothing names it.
                if let Err(e) = self.bucket.delete(&self.key_of(&object.name)) {
                    output::note(&format!(
                        "'{}' stays in the bucket: {e}; disk saved --clean removes it",
                        object.name
                    ));
                }
                return Err(error);
            }
            Err(Unpublished { error, .. }) => return Err(error),
        }
        let names = self.names();
        let is_ours = |object: &&Object| names.is_object_name(&object.name);
        for unneeded in former.iter().filter(|object| !manifest.objects.contains(object)).filter(is_ours) {
            if let Err(e) = self.bucket.delete(&self.key_of(&unneeded.name)) {
                let what = format!("'{}' is not needed any more, and stays: {e}", unneeded.name);
                output::note(&format!("{what}; disk saved --clean removes it"));
            }
        }
        Ok(())
    }

    /// Replaces the manifest if it is still the one that was read.
    fn replace(&self, bytes: &[u8]) -> std::result::Result<(), Unpublished> {
        let condition = match &self.former {
            None => Condition::Absent,
            Some(former) => Condition::Is(former.object.version.clone()),
        };
        let former = self.former.as_ref().map(|former| &former.object.bytes);
        let mut attempts = 1;
        loop {
            let e = match self.bucket.put_if(&self.key, bytes, &condition) {
                Ok(()) => return Ok(()),
                Err(e) => e,
            };
            if !matches!(e, BucketError::Changed | BucketError::Failed { .. }) {
                return Err(Unpublished { error: failure("writing", &self.shown, &e), is_known: true });
            }
            // An attempt whose answer was lost may have written it, and is what the next one met.
            match self.bucket.get(&self.key, MANIFEST_BYTES_MAX) {
                Ok(Some(found)) if found.bytes == bytes => return Ok(()),
                Ok(found) if found.as_ref().map(|found| &found.bytes) != former => {
                    return Err(Unpublished { error: self.replaced(), is_known: true });
                }
                Ok(_) if e == BucketError::Changed => {
                    return Err(Unpublished { error: self.replaced(), is_known: true });
                }
                Ok(_) if attempts < ATTEMPTS => attempts += 1,
                _ => {
                    let message = format!(
                        "the disk is in the bucket, and whether '{}' names it is not known: {e}; save the disk again, or look by \
                         'disk saved'",
                        self.shown
                    );
                    return Err(Unpublished { error: CliError::failed(message), is_known: false });
                }
            }
        }
    }

    fn replaced(&self) -> CliError {
        let message = format!(
            "'{}' was replaced by another save meanwhile, which stays; save the disk again",
            self.shown
        );
        CliError::new(Exit::Busy, message)
    }
}

/// A manifest that was not written.
struct Unpublished {
    error: CliError,
    /// Whether that is known. Otherwise the object has to stay.
    is_known: bool,
}
