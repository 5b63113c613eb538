//! The codes of errors, and the message of each thread's last error.

use pagefold_memory::store::StoreError;
use pagefold_memory::{RangeError, RegionError};
use pagefold_sys::uffd::OpenError;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Display;

/// The results of functions: the header's `PF_…`. A code keeps its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// Success.
    Ok = 0,
    /// An argument or a setting is not valid.
    Invalid = 1,
    /// A part does not lie in its region.
    Range = 2,
    /// The part is larger than may be pinned at once.
    Limit = 3,
    /// A page is pinned, or pinned too often.
    Pinned = 4,
    /// The object is in use.
    Busy = 5,
    /// The file cannot be used, or was changed.
    File = 6,
    /// A page's contents are lost or cannot be read back.
    Lost = 7,
    /// The system does not support it or does not allow it.
    NotSupported = 8,
    /// There is no memory.
    NoMemory = 9,
    /// A system call failed.
    System = 10,
    /// The handle belongs to the parent of this process.
    Forked = 11,
    /// A bug in the library.
    Panic = 12,
}

/// All codes with their names in the header.
const NAMES: [(Code, &CStr); 13] = [
    (Code::Ok, c"PF_OK"),
    (Code::Invalid, c"PF_EINVAL"),
    (Code::Range, c"PF_ERANGE"),
    (Code::Limit, c"PF_ELIMIT"),
    (Code::Pinned, c"PF_EPINNED"),
    (Code::Busy, c"PF_EBUSY"),
    (Code::File, c"PF_EFILE"),
    (Code::Lost, c"PF_ELOST"),
    (Code::NotSupported, c"PF_ENOTSUP"),
    (Code::NoMemory, c"PF_ENOMEM"),
    (Code::System, c"PF_ESYSTEM"),
    (Code::Forked, c"PF_EFORKED"),
    (Code::Panic, c"PF_EPANIC"),
];

/// A failure of a function: its code and its message.
#[derive(Debug)]
pub(crate) struct Error {
    pub(crate) code: Code,
    message: String,
}

impl Error {
    pub(crate) fn new(code: Code, message: impl Display) -> Self {
        Error { code, message: message.to_string() }
    }

    pub(crate) fn invalid(message: impl Display) -> Self {
        Error::new(Code::Invalid, message)
    }
}

impl From<RangeError> for Error {
    fn from(error: RangeError) -> Self {
        let code = match error {
            RangeError::OutOfRange { .. } | RangeError::NotInRegion { .. } => Code::Range,
            RangeError::OverLimit { .. } => Code::Limit,
            RangeError::TooManyPins { .. } | RangeError::Pinned { .. } => Code::Pinned,
            RangeError::FileChanged { .. } => Code::File,
            RangeError::Lost { .. } => Code::Lost,
            RangeError::NoWorkingMemory => Code::NoMemory,
            RangeError::SigbusBlocked => Code::NotSupported,
            _ => Code::System,
        };
        Error::new(code, error)
    }
}

impl From<RegionError> for Error {
    fn from(error: RegionError) -> Self {
        let code = match &error {
            RegionError::Range(range) => return (*range).into(),
            RegionError::BadLength(_)
            | RegionError::BeyondMax { .. }
            | RegionError::LimitTooSmall { .. }
            | RegionError::BadPercent { .. } => Code::Invalid,
            // The codec is the only part of the settings that the store judges.
            RegionError::Store(StoreError::Codec(_)) => Code::Invalid,
            RegionError::NotAFile => Code::File,
            RegionError::Userfaultfd(OpenError::Failed(_)) => Code::System,
            RegionError::PageSize { .. }
            | RegionError::Userfaultfd(_)
            | RegionError::NoFeature(_)
            | RegionError::UnfitThread(_) => Code::NotSupported,
            RegionError::TooMany(_) => Code::Busy,
            RegionError::BudgetFull { .. } => Code::NoMemory,
            error if error.errno() == Some(libc::ENOMEM) => Code::NoMemory,
            _ => Code::System,
        };
        match error.hint() {
            Some(hint) => Error::new(code, format_args!("{error}; {hint}")),
            None => Error::new(code, error),
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the message of an error for the calling thread. A thread that is ending keeps none.
pub(crate) fn remember(error: &Error) {
    let bytes: Vec<u8> = error.message.bytes().filter(|byte| *byte != 0).collect();
    let message = CString::new(bytes).unwrap_or_default();
    let _ = LAST.try_with(|last| last.replace(message));
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn pf_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn pf_error_name(code: c_int) -> *const c_char {
    let name = NAMES.iter().find(|(known, _)| *known as c_int == code);
    name.map_or(c"unknown code", |(_, name)| *name).as_ptr()
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn pf_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
