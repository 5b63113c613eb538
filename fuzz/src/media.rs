//! Media and files in memory, and folders.

use pagefold_backing::{Backing, MemoryBacking};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// A medium with these bytes.
pub fn memory(bytes: &[u8]) -> Arc<MemoryBacking> {
    let medium = MemoryBacking::new(bytes.len());
    medium.write_at(0, bytes).expect("a write inside");
    Arc::new(medium)
}

/// A file with these bytes.
pub fn file(bytes: &[u8]) -> File {
    let mut file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all(bytes).expect("a write to memory");
    file
}

/// A path for the folder of this process.
pub fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pagefold-fuzz-{name}-{}", std::process::id()))
}

/// An empty folder, removed at the end.
pub struct EmptyFolder(pub PathBuf);

impl EmptyFolder {
    pub fn new() -> Self {
        let path = folder("out");
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a directory");
        EmptyFolder(path)
    }
}

impl Drop for EmptyFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
