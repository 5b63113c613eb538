//! Arguments that Python passes: sizes, and the settings of a region.

use crate::budget::Limit;
use crate::errors;
use pagefold_codec::CodecSpec;
use pagefold_memory::{Region, RegionConfig, Service};
use pagefold_page::size;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::fs::File;
use std::path::PathBuf;

/// A size in bytes: a number, or a text as on the command line (`"512M"`, `"1.5 GiB"`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size(pub(crate) u64);

impl<'a, 'py> FromPyObject<'a, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.extract::<String>() {
            return size::parse(&text).map(Size).map_err(|e| PyValueError::new_err(e.to_string()));
        }
        match object.extract::<i128>() {
            Ok(bytes) => u64::try_from(bytes)
                .map(Size)
                .map_err(|_| PyValueError::new_err(format!("{bytes} is not a size in bytes"))),
            Err(_) => Err(PyTypeError::new_err(format!(
                "a size is a number of bytes or a text such as \"512M\", not {}",
                object.get_type().name()?
            ))),
        }
    }
}

/// Returns the bytes of a size: a number of bytes, or a text such as "512M" or "1.5 GiB".
#[pyfunction]
pub(crate) fn parse_size(size: Size) -> u64 {
    size.0
}

/// Returns a number of bytes as text: "1.50 GiB".
#[pyfunction]
pub(crate) fn format_size(size: u64) -> String {
    size::Human(size).to_string()
}

/// The settings that regions of all kinds have.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    memory: Limit,
    pool_bytes: Option<u64>,
    codec: String,
    level: Option<i32>,
    system_calls: bool,
}

impl Settings {
    /// Takes the keywords as Python passes them.
    pub(crate) fn new(
        memory: Limit,
        pool: Option<Size>,
        codec: &str,
        level: Option<i32>,
        system_calls: bool,
    ) -> Self {
        Settings {
            memory,
            pool_bytes: pool.map(|size| size.0),
            codec: codec.to_string(),
            level,
            system_calls,
        }
    }

    /// Makes a region of `len_bytes`, which can grow to `max_len_bytes`, and which begins with the bytes of `file`.
    ///
    /// The interpreter's lock is released meanwhile.
    pub(crate) fn region(
        &self,
        py: Python<'_>,
        len_bytes: u64,
        max_len_bytes: Option<u64>,
        file: Option<PathBuf>,
    ) -> PyResult<Region> {
        let config = match &self.memory {
            Limit::Bytes(bytes) => RegionConfig::new(len_bytes, *bytes),
            Limit::Budget(budget) => RegionConfig::in_budget(len_bytes, budget),
        };
        let config = RegionConfig {
            max_len_bytes,
            service: Service::HandlerThreads,
            kernel_faults: self.system_calls,
            system_calls: self.system_calls,
            codec: CodecSpec { level: self.level, ..CodecSpec::named(self.codec.as_str()) },
            max_pool_bytes: self.pool_bytes,
            ..config
        };
        let file = match file {
            // Opening converts the error to an exception with the file's name only here.
            Some(path) => Some(py.detach(|| File::open(&path)).map_err(|e| named(&e, &path))?),
            None => None,
        };
        py.detach(|| match file {
            Some(file) => Region::from_file(file, config),
            None => Region::new(config),
        })
        .map_err(|e| errors::region(&e))
    }
}

fn named(error: &std::io::Error, path: &std::path::Path) -> PyErr {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    // Python chooses the subclass by the number, such as FileNotFoundError.
    let message = std::io::Error::from_raw_os_error(errno).to_string();
    pyo3::exceptions::PyOSError::new_err((errno, message, path.display().to_string()))
}
