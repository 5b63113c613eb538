//! The settings of a region that Python passes.

use crate::budget::Limit;
use crate::errors;
use crate::sizes::Size;
use pagefold_codec::CodecSpec;
use pagefold_memory::{Region, RegionConfig, Service};
use pyo3::prelude::*;
use std::fs::File;
use std::path::PathBuf;

/// The settings that regions of all kinds have.
#[derive(Debug, Clone)]
pub(crate) struct RegionSettings {
    memory: Limit,
    pool_bytes: Option<u64>,
    codec: String,
    level: Option<i32>,
    system_calls: bool,
}

impl RegionSettings {
    /// Takes the keywords as Python passes them.
    pub(crate) fn new(
        memory: Limit,
        pool: Option<Size>,
        codec: &str,
        level: Option<i32>,
        system_calls: bool,
    ) -> Self {
        RegionSettings {
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
