//! `disk saved --clean`: removes objects that interrupted saves have left beside a manifest.

use super::manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestKey};
use super::name_of_target;
use super::place::failure;
use crate::cli::{numbers, output};
use pagefold_bucket::{Bucket, Target};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::Location;
use pagefold_control::report::saved::{CleanReport, CleanedObject};
use pagefold_control::text;
use pagefold_page::size::Human;
use std::time::{SystemTime, UNIX_EPOCH};

/// Removes the objects that the manifest at a location does not name and that are older than `older_than_s`.
pub fn run(location: &Location, older_than_s: u64, json: bool) -> Result<()> {
    let name = name_of_target(location)?;
    let Target { bucket, key } = Target::open(&name).map_err(|e| failure("opening", &name, &e))?;
    let report = clean(&bucket, &name, &key, older_than_s)?;
    if json {
        return output::json(&report);
    }
    for object in &report.removed {
        let (len, time) = (Human(object.bytes), text::time_text(object.modified_unix_s));
        output::line(&format!("removed {} ({len}, of {time})", object.key))?;
    }
    if report.younger > 0 {
        let younger = numbers::counted(report.younger, "object is", "objects are");
        output::note(&format!(
            "{younger} not named either, and younger than --older-than: a save may be running"
        ));
    }
    Ok(())
}

fn clean(bucket: &Bucket, name: &str, key: &str, older_than_s: u64) -> Result<CleanReport> {
    let names = ManifestKey::of(key);
    let listed = bucket.list(&format!("{key}.")).map_err(|e| failure("listing", name, &e))?;
    // Read after the list: an object that is listed and not named belongs to no complete save.
    let manifest = bucket.get(key, MANIFEST_BYTES_MAX).map_err(|e| failure("reading", name, &e))?;
    let manifest = manifest.ok_or_else(|| {
        let what = format!("'{name}' is missing, so it is not known what is needed; save the disk first");
        CliError::new(Exit::NotFound, what)
    })?;
    let manifest = Manifest::parse(&manifest.bytes)
        .map_err(|what| CliError::new(Exit::Damaged, format!("reading '{name}': {what}")))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let mut report = CleanReport::default();
    for object in listed {
        let Some(found) = object.key.strip_prefix(names.folder) else { continue };
        if !names.is_object_name(found) || manifest.objects.iter().any(|named| named.name == found) {
            continue;
        }
        let age_s = (now as i64).saturating_sub(object.modified_unix_s);
        if age_s < i64::try_from(older_than_s).unwrap_or(i64::MAX) {
            report.younger += 1;
            continue;
        }
        bucket.delete(&object.key).map_err(|e| failure("removing", &object.key, &e))?;
        report.removed.push(CleanedObject {
            key: object.key,
            bytes: object.len_bytes,
            modified_unix_s: object.modified_unix_s,
        });
    }
    Ok(report)
}
