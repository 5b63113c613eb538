//! A parameter of the kernel that a test sets, and that has its old value again afterwards.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A parameter with another value. Its holder has the lock (`flock`) of the parameter's file, so that only one test of
/// all programs on the machine sets it at a time: another one would save this value as the old one. Dropping it restores
/// the old value.
#[derive(Debug)]
pub struct Parameter {
    file: PathBuf,
    before: String,
    /// Closed, and so unlocked, after the old value was restored.
    _lock: File,
}

impl Parameter {
    /// Sets the parameter in a file, such as one below `/sys/module`. Fails if the kernel does not have it, or does not
    /// let this process set it.
    pub fn set(file: &Path, value: &str) -> io::Result<Self> {
        let lock = File::open(file)?;
        lock.lock()?;
        let before = fs::read_to_string(file)?;
        fs::write(file, value)?;
        Ok(Parameter { file: file.to_path_buf(), before, _lock: lock })
    }

    /// Sets the parameter again.
    ///
    /// # Panics
    /// If the kernel refuses it now.
    pub fn change(&self, value: &str) {
        if let Err(e) = fs::write(&self.file, value) {
            panic!("writing {}: {e}", self.file.display());
        }
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        self.change(self.before.trim());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_wait_until_the_old_value_is_restored() {
        let file = std::env::temp_dir().join(format!("pagefold-parameter-{}", std::process::id()));
        fs::write(&file, "N\n").unwrap();
        let parameter = Parameter::set(&file, "Y").unwrap();
        // The command opens the file as another test program does.
        let is_free = || {
            let status = std::process::Command::new("flock").arg("-n").arg(&file).arg("true").status();
            status.unwrap().success()
        };
        assert!(!is_free());
        assert_eq!(fs::read_to_string(&file).unwrap(), "Y");
        drop(parameter);
        assert_eq!(fs::read_to_string(&file).unwrap(), "N");
        assert!(is_free());
        fs::remove_file(&file).unwrap();
    }
}
