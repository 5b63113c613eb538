//! The units as files in a folder.

use super::text::Unit;
use super::{HEADER, Plan};
use crate::cli::output;
use crate::image::open::path_failure;
use crate::image::target::Target;
use pagefold_control::error::{CliError, Exit, Result};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes the units, each as a whole, and removes those of an earlier call for this disk. Replaces no file of others.
pub fn install(folder: &Path, units: &[Unit], plan: &Plan) -> Result<()> {
    let paths: Vec<_> = units.iter().map(|unit| folder.join(&unit.name)).collect();
    for path in &paths {
        if own(path)?.is_none() && path.symlink_metadata().is_ok() {
            let shown = path.display();
            return Err(CliError::new(
                Exit::Busy,
                format!(
                    "'{shown}' exists and was not made by this command; nothing was written: remove it first"
                ),
            ));
        }
    }
    for (unit, path) in units.iter().zip(&paths) {
        let target = Target::open(path)?;
        let written = target.file().write_all(unit.text.as_bytes());
        written.map_err(|e| target.failed(&e))?;
        target.complete()?;
        output::line(&format!("wrote {}", path.display()))?;
    }
    for path in former(folder, plan)?.iter().filter(|path| !paths.contains(path)) {
        let removed = std::fs::remove_file(path);
        removed.map_err(|e| CliError::io(format!("removing '{}'", path.display()), &e))?;
        output::line(&format!("removed {}", path.display()))?;
    }
    Ok(())
}

/// The files of this disk's timer, its save, and its mounts that this command has made.
fn former(folder: &Path, plan: &Plan) -> Result<Vec<PathBuf>> {
    let failed = |e: &std::io::Error| path_failure(format!("reading '{}'", folder.display()), e);
    let bound = format!("\nBindsTo={}.service\n", plan.service());
    let saves = ["timer", "service"].map(|end| folder.join(format!("{}.{end}", plan.save())));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| failed(&e))? {
        let path = entry.map_err(|e| failed(&e))?.path();
        let is_mount = path.extension().is_some_and(|end| end == "mount");
        if !is_mount && !saves.contains(&path) {
            continue;
        }
        // A file that cannot be read was made by somebody else.
        if own(&path).ok().flatten().is_some_and(|text| !is_mount || text.contains(&bound)) {
            found.push(path);
        }
    }
    Ok(found)
}

/// The text of a file that this command has made; `None` if it is missing or somebody else's.
fn own(path: &Path) -> Result<Option<String>> {
    match std::fs::read(path) {
        Ok(contents) => Ok(String::from_utf8(contents).ok().filter(|text| text.starts_with(HEADER))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(path_failure(format!("reading '{}'", path.display()), &e)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::plan;
    use super::*;

    #[test]
    fn files_of_others_are_not_replaced_and_units_that_are_not_needed_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut given = vec!["x", "--size=1G", "--save-to=/x", "--every=1h", "--mount=/srv/old"];
        let with_timer = plan(&given).unwrap();
        install(folder, &with_timer.units(), &with_timer).unwrap();
        install(folder, &with_timer.units(), &with_timer).unwrap();
        let count = || std::fs::read_dir(folder).unwrap().count();
        assert_eq!(count(), 4);
        given[0] = "x-save";
        given[4] = "--mount=/srv/other";
        let other = plan(&given).unwrap();
        install(folder, &other.units(), &other).unwrap();
        assert_eq!(count(), 8, "the files of two disks have different names");
        let without = plan(&["x", "--size=1G", "--mount=/srv/x"]).unwrap();
        std::fs::write(folder.join("srv-x.mount"), "[Mount]\n").unwrap();
        assert_eq!(install(folder, &without.units(), &without).unwrap_err().exit, Exit::Busy);
        assert_eq!(count(), 9);
        std::fs::remove_file(folder.join("srv-x.mount")).unwrap();
        install(folder, &without.units(), &without).unwrap();
        assert_eq!(count(), 6);
        assert!(!folder.join("srv-old.mount").exists() && folder.join("srv-other.mount").exists());
    }
}
