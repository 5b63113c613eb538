//! The border between C and Rust: each function runs its body here.

use crate::error::{Code, Error, remember};
use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a function and returns its code. The message of an error is kept for the calling thread.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Error>) -> c_int {
    value(|code| code as c_int, || body().map(|()| Code::Ok as c_int))
}

/// Runs the body of a function that returns a value, and `failed` of the code if it fails.
pub(crate) fn value<T>(failed: impl FnOnce(Code) -> T, body: impl FnOnce() -> Result<T, Error>) -> T {
    // The state that a panic leaves behind is that of an operation which stopped halfway: locks do not poison, and a
    // handle can still be destroyed.
    match catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(of(panic.as_ref()))) {
        Ok(value) => value,
        Err(error) => {
            remember(&error);
            failed(error.code)
        }
    }
}

/// Stores a new handle where the caller wants it.
///
/// # Safety
/// `out` is null or the address of a pointer.
pub(crate) unsafe fn put<T>(out: *mut *mut T, make: impl FnOnce() -> Result<T, Error>) -> Result<(), Error> {
    if out.is_null() {
        return Err(Error::invalid("the address for the new handle is a null pointer"));
    }
    // SAFETY: the caller guarantees it.
    unsafe { out.write(std::ptr::null_mut()) };
    let made = Box::new(make()?);
    // SAFETY: the caller guarantees it.
    unsafe { out.write(Box::into_raw(made)) };
    Ok(())
}

/// Fills the caller's struct of `size_bytes`, of whatever version: fields that `from` lacks become zero.
///
/// # Safety
/// `to` is the address of so many bytes, and zeroes are valid for all fields of a later version.
pub(crate) unsafe fn fill<T: Copy>(to: *mut T, from: &T, size_bytes: usize) {
    let (to, known) = (to.cast::<u8>(), size_bytes.min(size_of::<T>()));
    // SAFETY: the caller guarantees it.
    unsafe {
        to.write_bytes(0, size_bytes);
        to.copy_from_nonoverlapping(std::ptr::from_ref(from).cast(), known);
    }
}

/// Returns the error of a panic.
fn of(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    Error::new(Code::Panic, format_args!("a bug in libpagefold: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::pf_error_message;
    use std::ffi::CStr;

    #[test]
    fn a_panic_becomes_a_code_and_a_message() {
        let code = call(|| std::panic::resume_unwind(Box::new("it broke")));
        assert_eq!(code, Code::Panic as c_int);
        // SAFETY: the message is a string of this thread, which no other call has replaced.
        let message = unsafe { CStr::from_ptr(pf_error_message()) };
        assert_eq!(message, c"a bug in libpagefold: it broke");
        let code = call(|| Err(Error::invalid("a zero \0 is left out")));
        assert_eq!(code, Code::Invalid as c_int);
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(pf_error_message()) }, c"a zero  is left out");
    }
}
