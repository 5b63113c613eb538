//! Sizes that Python passes or prints.

use pagefold_page::size;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

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
