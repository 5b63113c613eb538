//! [`NamedFiles`]: the files that the changes of a request name, opened by the command that makes the request.
//!
//! A server may be confined, and then it can open no path; besides, a path means what its writer may open. So the command opens
//! the files with its own rights, and passes the descriptors beside the request. A file that could not be opened is passed as
//! the error: the server returns it when it comes to that change, in the order of all checks.

use crate::error::{CliError, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Most files of a request. The rest of the descriptors is closed.
pub const FILES_MAX: usize = 16;

/// A file in a request, without its descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedFile {
    /// The path as the change names it.
    pub path: PathBuf,
    /// The path of the file that was opened, whose descriptor is passed, or why it was not.
    pub opened: Result<PathBuf>,
}

/// The files of a request.
#[derive(Debug, Default)]
pub struct NamedFiles(Vec<(NamedFile, Option<File>)>);

impl NamedFiles {
    /// Adds the file that a change names as `path`: the open file with its path, or the error.
    pub fn add(&mut self, path: PathBuf, opened: Result<(File, PathBuf)>) {
        let (file, opened) = match opened {
            Ok((file, found)) => (Some(file), Ok(found)),
            Err(e) => (None, Err(e)),
        };
        self.0.push((NamedFile { path, opened }, file));
    }

    /// The files of a request that was received with these descriptors.
    pub fn received(named: Vec<NamedFile>, fds: Vec<OwnedFd>) -> Self {
        let mut fds = fds.into_iter();
        let with_file = |named: NamedFile| {
            let file = named.opened.is_ok().then(|| fds.next().map(File::from)).flatten();
            (named, file)
        };
        NamedFiles(named.into_iter().map(with_file).collect())
    }

    /// The part of the request.
    pub fn named(&self) -> Vec<NamedFile> {
        self.0.iter().map(|(named, _)| named.clone()).collect()
    }

    /// The descriptors, in the order of [`NamedFiles::named`].
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().filter_map(|(_, file)| file.as_ref().map(AsFd::as_fd)).collect()
    }

    /// The file of a request that names one alone.
    pub fn only(&self) -> Result<File> {
        let missing = || CliError::failed("the request has no open file (EINVAL)").with_errno(libc::EINVAL);
        let file = self.0.iter().find_map(|(_, file)| file.as_ref()).ok_or_else(missing)?;
        file.try_clone().map_err(|e| CliError::io("duplicating a descriptor", &e))
    }

    /// The file that a change names as `path`, and its path when it was opened.
    pub fn find(&self, path: &Path) -> Result<(File, PathBuf)> {
        let missing = || {
            let what = format!(
                "the request has no open file for '{}' (EINVAL): commands open files, because servers are confined",
                path.display()
            );
            CliError::failed(what).with_errno(libc::EINVAL)
        };
        let found = self.0.iter().find(|(named, _)| named.path == path);
        let (named, file) = found.ok_or_else(missing)?;
        let opened = named.opened.clone()?;
        let file = file.as_ref().ok_or_else(missing)?.try_clone();
        Ok((file.map_err(|e| CliError::io("duplicating a descriptor", &e))?, opened))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_its_name_and_an_error_is_that_of_the_command() {
        let mut files = NamedFiles::default();
        let refused = CliError::failed("no").with_errno(libc::EISDIR);
        files.add("/a".into(), Err(refused.clone()));
        files.add("/b".into(), Ok((tempfile::tempfile().unwrap(), "/c".into())));
        let fds = || files.fds().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect::<Vec<_>>();
        let received = NamedFiles::received(files.named(), fds());
        assert_eq!(received.find("/a".as_ref()).unwrap_err(), refused);
        assert_eq!(received.find("/b".as_ref()).unwrap().1, Path::new("/c"));
        assert_eq!(received.find("/d".as_ref()).unwrap_err().errno, Some(libc::EINVAL));
        let without = NamedFiles::received(files.named(), Vec::new());
        assert_eq!(without.find("/b".as_ref()).unwrap_err().errno, Some(libc::EINVAL));
    }
}
