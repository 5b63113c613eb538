//! Replaces the manifest of a saved disk, and removes the objects that nothing names any more.
//!
//! A write whose answer is lost may be done at once, later, or never, and other saves may go on from it. So an object is
//! removed only if it is known that no manifest names it, and none can: otherwise it stays, for `disk saved --clean`.

use super::interrupt::{Waited, interruptible, wait};
use super::manifest::{MANIFEST_BYTES_MAX, Manifest, Object};
use super::place::{Place, failure};
use crate::cli::{numbers, output};
use pagefold_bucket::{BucketError, Condition, SmallObject};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::report::saved::SaveReport;
use pagefold_sys::signal::Termination;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// Attempts to write the manifest, if the store does not answer or refuses for another reason than the condition.
const ATTEMPTS: u32 = 8;
/// The pause after the first attempt. It doubles: all together have half a minute.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The time for the removal of all objects that are not needed.
const REMOVAL_LIMIT: Duration = Duration::from_secs(20);

/// Writes the manifest that names the object `name` first, and removes what is not needed any more. After a signal, or
/// without an answer, the error says that the end is not known, and nothing is removed.
pub fn publish(place: &Arc<Place>, report: &SaveReport, name: String, signals: &Termination) -> Result<()> {
    let figures = &report.figures;
    let object = Object {
        name: name.clone(),
        id: figures.id.clone(),
        sha256: figures.digest.clone(),
        bytes: figures.file_bytes,
    };
    let former = place.former.as_ref().map_or(&[][..], |former| &former.manifest.objects);
    let kept = if figures.parent.is_some() { former } else { &[] };
    let manifest = Manifest::new(std::iter::once(object).chain(kept.iter().cloned()).collect());
    let replacing = place.clone();
    // The thread removes nothing, because it goes on after a signal.
    let replaced = match interruptible(signals, move || replace(&replacing, manifest))? {
        Waited::Interrupted => Err(Unpublished::unknown(place, "interrupted")),
        replaced => replaced.or_interrupted(|| CliError::failed("interrupted"))?,
    };
    match replaced {
        Ok(there) => {
            let names = place.names();
            let unneeded = former.iter().filter(|object| !there.objects.contains(object));
            let unneeded = unneeded.map(|object| object.name.clone());
            remove(place, unneeded.filter(|name| names.is_object_name(name)).collect(), signals);
            Ok(())
        }
        Err(Unpublished { error, is_known: true }) => {
            remove(place, vec![name], signals);
            Err(error)
        }
        Err(Unpublished { error, .. }) => {
            output::note(&format!(
                "'{name}' stays in the bucket, because a manifest may name it; if none does, disk saved --clean removes it"
            ));
            Err(error)
        }
    }
}

/// A manifest that was not written, as far as is known.
#[derive(Debug)]
struct Unpublished {
    error: CliError,
    /// Whether no manifest names the object, and none will. Otherwise the object has to stay.
    is_known: bool,
}

impl Unpublished {
    fn unknown(place: &Place, why: impl std::fmt::Display) -> Self {
        let message = format!(
            "the disk is in the bucket, and whether '{}' names it is not known: {why}; save the disk again, or look by 'disk saved'",
            place.shown
        );
        Unpublished { error: CliError::failed(message), is_known: false }
    }

    fn replaced(place: &Place, is_known: bool) -> Self {
        let message = format!(
            "'{}' was replaced by another save meanwhile, which stays; save the disk again",
            place.shown
        );
        Unpublished { error: CliError::new(Exit::Busy, message), is_known }
    }
}

/// Replaces the manifest if it is still the one that was read; returns the one that is there then, which names the newest
/// object of `manifest`.
fn replace(place: &Place, manifest: Manifest) -> std::result::Result<Manifest, Unpublished> {
    let bytes = manifest.to_bytes();
    let condition = match &place.former {
        None => Condition::Absent,
        Some(former) => Condition::Is(former.object.version.clone()),
    };
    let (mut attempts, mut pause) = (1, FIRST_PAUSE);
    // Whether an attempt without a clear answer was made. It may be done even after a later one is refused.
    let mut is_uncertain = false;
    loop {
        let e = match place.bucket.put_if(&place.key, &bytes, &condition) {
            Ok(()) => return Ok(manifest),
            Err(e) => e,
        };
        let (is_failed, is_changed) = (matches!(e, BucketError::Failed { .. }), e == BucketError::Changed);
        is_uncertain |= is_failed;
        if !is_uncertain && !is_changed {
            return Err(Unpublished { error: failure("writing", &place.shown, &e), is_known: true });
        }
        let Ok(found) = place.bucket.get(&place.key, MANIFEST_BYTES_MAX) else {
            return Err(Unpublished::unknown(place, e));
        };
        match Found::of(place, &manifest, found) {
            Found::Ours(there) => return Ok(there),
            Found::Another { is_known } => {
                return Err(Unpublished::replaced(place, !is_uncertain && is_known));
            }
            // Another save has written the same manifest again, or has removed its own.
            Found::Former if is_changed && !is_uncertain => return Err(Unpublished::replaced(place, true)),
            Found::Former if is_failed && attempts < ATTEMPTS => {}
            Found::Former => return Err(Unpublished::unknown(place, e)),
        }
        std::thread::sleep(pause);
        (attempts, pause) = (attempts + 1, pause * 2);
    }
}

/// The contents of the key after a write without success.
#[derive(Debug)]
enum Found {
    /// A manifest that names our object: the one that was written, or that of a save which has gone on from it.
    Ours(Manifest),
    /// The manifest that was there before, or nothing as before.
    Former,
    /// Something else.
    Another {
        /// Whether it does not name our object. Something that cannot be read may name it.
        is_known: bool,
    },
}

impl Found {
    /// Judges what was read, for a write of `manifest`.
    fn of(place: &Place, manifest: &Manifest, found: Option<SmallObject>) -> Self {
        let former = place.former.as_ref().map(|former| &former.object.bytes);
        if found.as_ref().map(|found| &found.bytes) == former {
            return Found::Former;
        }
        match found.map(|found| Manifest::parse(&found.bytes)) {
            Some(Ok(there)) => match manifest.objects.first() {
                Some(ours) if there.objects.contains(ours) => Found::Ours(there),
                _ => Found::Another { is_known: true },
            },
            Some(Err(_)) => Found::Another { is_known: false },
            None => Found::Another { is_known: true },
        }
    }
}

/// Removes objects that no manifest names, until a signal or the end of the time. Notes what stays, which harms nobody.
pub fn remove(place: &Arc<Place>, names: Vec<String>, signals: &Termination) {
    let end = Instant::now() + REMOVAL_LIMIT;
    // Without room: the thread deletes no further object when nobody receives.
    let (sender, done) = sync_channel(0);
    let (removing, removed) = (place.clone(), names.clone());
    let spawned = std::thread::Builder::new().name("remove".into()).spawn(move || {
        for name in removed {
            if sender.send(removing.bucket.delete(&removing.key_of(&name))).is_err() {
                return;
            }
        }
    });
    let mut stays = Vec::new();
    let mut stopped = spawned.err().map(|e| format!("starting a thread: {e}"));
    for name in names {
        let why = match &stopped {
            Some(why) => why.clone(),
            None => match wait(&done, signals, Some(end)) {
                Waited::Done(Ok(())) => continue,
                Waited::Done(Err(e)) => e.to_string(),
                Waited::Interrupted => stopped.insert("interrupted".into()).clone(),
                Waited::TimedOut => stopped.insert("the store does not answer".into()).clone(),
                Waited::Panicked => stopped.insert("its thread has ended".into()).clone(),
            },
        };
        stays.push((name, why));
    }
    if let Some((first, why)) = stays.first() {
        let what = match stays.len() as u64 {
            1 => format!("'{first}' is not needed, and stays in the bucket"),
            count => {
                let count = numbers::counted(count, "object is", "objects are");
                format!("{count} not needed, and may stay in the bucket, from '{first}' on")
            }
        };
        output::note(&format!("{what}: {why}; disk saved --clean removes what stays"));
    }
}
