//! A parameter of the kernel that a test sets, and that has its old value again afterwards.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

static LOCK: Mutex<()> = Mutex::new(());

/// A parameter with another value. Only one test of the program has one at a time. Dropping it restores the old value.
#[derive(Debug)]
pub struct Parameter {
    file: PathBuf,
    before: String,
    _lock: MutexGuard<'static, ()>,
}

impl Parameter {
    /// Sets the parameter in a file, such as one below `/sys/module`. Fails if the kernel does not have it, or does not
    /// let this process set it.
    pub fn set(file: &Path, value: &str) -> io::Result<Self> {
        let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
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
