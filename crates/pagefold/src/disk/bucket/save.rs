//! `disk save` to a bucket.
//!
//! The server writes to a socket, and a thread uploads its bytes as an object with a unique name. When the server has
//! reported success, the object is completed; then the manifest is replaced, if it is still the one that was read at the
//! beginning; then the objects that only the former manifest named are removed. A failure at any point leaves the former
//! manifest with all its objects.

use super::interrupt::{Waited, interruptible, wait};
use super::name_of_target;
use super::place::{Place, failure, open};
use super::publish::{publish, remove};
use crate::disk::freeze::Freezer;
use crate::disk::save::{SOCKET_TIMEOUT, SaveArgs, save};
use pagefold_bucket::{BucketError, Go, verdict};
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::Location;
use pagefold_control::protocol::IncrementalSave;
use pagefold_control::report::saved::SaveReport;
use pagefold_sys::signal::Termination;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// The time that an upload has to end after it was given up.
const ABORT_LIMIT: Duration = Duration::from_secs(20);

/// Saves a disk to a bucket.
pub fn to_bucket(args: &SaveArgs, freezer: &mut Freezer, location: &Location) -> Result<SaveReport> {
    // Before threads are started.
    let signals = Termination::listen()?;
    let name = name_of_target(location)?;
    let place = interruptible(&signals, move || open(&name))?.or_interrupted(interrupted)??;
    let place = Arc::new(place);
    let (parent, full_because) = match (args.incremental, place.parent()) {
        (false, _) => (None, None),
        (true, Ok(parent)) => (Some(parent), None),
        (true, Err(reason)) => (None, Some(reason)),
    };
    let incremental = args.incremental.then_some(IncrementalSave { parent });
    let (mut report, name) = upload(args, freezer, incremental.as_ref(), &place, &signals)?;
    report.full_because = full_because.or(report.full_because.take());
    publish(&place, &report, name, &signals)?;
    Ok(report)
}

fn interrupted() -> CliError {
    CliError::failed("interrupted: the disk was not saved")
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
    let remove_complete = |name| remove(place, vec![name], signals);
    let saved = save(args, freezer, File::from(OwnedFd::from(theirs)), incremental, signals);
    let report = match saved {
        Ok(report) => report,
        Err(e) => return Err(given_up(go, &done, e, &place.shown, remove_complete)),
    };
    go.go(report.figures.file_bytes);
    match wait(&done, signals, None) {
        Waited::Done(Ok(name)) => Ok((report, name)),
        Waited::Done(Err(e)) => Err(failure("writing", &place.shown, &e)),
        Waited::Interrupted => Err(given_up(go, &done, interrupted(), &place.shown, remove_complete)),
        ended => ended.or_interrupted(interrupted).and_then(|_| Err(interrupted())),
    }
}

/// The result of the thread that uploads: the name of the object.
type Uploaded = std::result::Result<String, BucketError>;

/// Gives an upload up, and waits until it is removed; one that was complete already, `remove_complete` removes. The error of the
/// upload explains that of the server.
fn given_up(
    go: Go,
    done: &Receiver<Uploaded>,
    e: CliError,
    shown: &str,
    remove_complete: impl FnOnce(String),
) -> CliError {
    drop(go);
    match done.recv_timeout(ABORT_LIMIT) {
        Ok(Ok(name)) => {
            remove_complete(name);
            e
        }
        Ok(Err(BucketError::GivenUp | BucketError::Input { .. })) => e,
        Ok(Err(own)) => failure("writing", shown, &own),
        Err(_) => CliError { message: format!("{e}; parts of it may stay in the bucket"), ..e },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signal may come while the store answers that the object is complete.
    #[test]
    fn what_is_complete_when_it_is_given_up_is_removed() {
        let removed = |uploaded: Uploaded| {
            let ((go, _verdict), (sender, done)) = (verdict(), sync_channel(1));
            sender.send(uploaded).unwrap();
            let mut removed = None;
            let e = given_up(go, &done, interrupted(), "s3://b/k", |name| removed = Some(name));
            (e.message, removed)
        };
        assert_eq!(removed(Ok("k.1".into())), (interrupted().message, Some("k.1".into())));
        assert_eq!(removed(Err(BucketError::GivenUp)), (interrupted().message, None));
        let denied = removed(Err(BucketError::Denied { what: "no".into() }));
        assert_eq!(denied, ("writing 's3://b/k': no".into(), None));
    }
}
