//! The exceptions of the package.
//!
//! An error that the system's settings cause says what to allow. `OSError` is the base of all, as the reasons are those
//! of the operating system; wrong arguments are `ValueError`.

use pagefold_memory::RegionError;
use pagefold_store::StoreError;
use pagefold_sys::forkmark::ForkMark;
use pagefold_sys::uffd::OpenError;
use pyo3::create_exception;
use pyo3::exceptions::{PyFileNotFoundError, PyMemoryError, PyNotADirectoryError, PyOSError, PyValueError};
use pyo3::{PyErr, PyResult};

create_exception!(pagefold, Error, PyOSError, "An operation of pagefold failed.");
create_exception!(
    pagefold,
    NotAllowedError,
    Error,
    "The system refuses what a region needs. The message says what to allow."
);
create_exception!(pagefold, ImageError, Error, "An image cannot be read.");

/// Makes the mark of this process.
pub(crate) fn fork_mark() -> PyResult<ForkMark> {
    ForkMark::new().map_err(|e| Error::new_err(e.to_string()))
}

/// Joins the messages of an error and of its causes.
pub(crate) fn text(error: &dyn std::error::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

/// Makes the exception for a region that was not made or changed.
pub(crate) fn region(error: &RegionError) -> PyErr {
    let text = text(error);
    match error {
        RegionError::BadLength(_)
        | RegionError::BeyondMax { .. }
        | RegionError::NotAFile
        | RegionError::LimitTooSmall { .. }
        | RegionError::BadPercent { .. }
        | RegionError::BudgetFull { .. }
        | RegionError::Range(_)
        | RegionError::Store(StoreError::Codec(_)) => PyValueError::new_err(text),
        RegionError::Userfaultfd(OpenError::KernelFaultsForbidden { .. }) => {
            NotAllowedError::new_err(format!(
                "{text}. Or pass system_calls=False: then everything but system calls works on the memory. A system call \
             that reads or writes it directly, as numpy.fromfile, numpy.save and socket.recv_into do, fails with \
             EFAULT, or stops early, wherever a page is not resident"
            ))
        }
        RegionError::Userfaultfd(
            OpenError::Absent | OpenError::NoUserModeOnly | OpenError::Forbidden { .. } | OpenError::Lacks(_),
        )
        | RegionError::NoFeature(_)
        | RegionError::PageSize { .. } => NotAllowedError::new_err(text),
        _ => match error.hint() {
            Some(hint) => NotAllowedError::new_err(format!("{text}; {hint}")),
            None => Error::new_err(text),
        },
    }
}

/// Makes the exception for an operation on a store.
pub(crate) fn store(error: &StoreError) -> PyErr {
    let text = text(error);
    match error {
        StoreError::OutOfRange { .. } => pyo3::exceptions::PyIndexError::new_err(text),
        StoreError::BadLength(_) | StoreError::Codec(_) => PyValueError::new_err(text),
        StoreError::NoMemory { .. } => PyMemoryError::new_err(text),
        _ => Error::new_err(text),
    }
}

/// Makes the exception for an operation on an image.
pub(crate) fn image(error: &pagefold_image::ImageError) -> PyErr {
    use pagefold_image::ImageError as E;
    let named = |errno: i32, name: &[u8]| {
        let name = String::from_utf8_lossy(name).into_owned();
        (errno, std::io::Error::from_raw_os_error(errno).to_string(), name)
    };
    match error {
        E::NotFound { name } => {
            let (errno, _, name) = named(libc::ENOENT, name);
            PyFileNotFoundError::new_err((errno, "No such file or directory in the image", name))
        }
        E::ParentNotDirectory { path } => {
            let (errno, _, path) = named(libc::ENOTDIR, path);
            PyNotADirectoryError::new_err((errno, "Not a directory", path))
        }
        E::NotADirectory { .. } => PyNotADirectoryError::new_err((libc::ENOTDIR, text(error))),
        E::TooManyLinks { path } => {
            let (errno, message, path) = named(libc::ELOOP, path);
            PyOSError::new_err((errno, message, path))
        }
        E::TooLittleMemory { .. } => PyValueError::new_err(text(error).replace("--memory", "memory=")),
        E::MissingDevices { .. } | E::SurplusDevices { .. } => {
            PyValueError::new_err(text(error).replace("--device", "devices="))
        }
        _ => ImageError::new_err(text(error)),
    }
}
