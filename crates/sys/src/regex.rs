//! Extended regular expressions of POSIX, by the C library.
//!
//! They are those of `grep -E` and of mkfs.erofs: the same expression matches the same paths. A program does not choose a
//! locale, so a character is a byte. Reference: regcomp(3).

use std::ffi::CString;
use std::fmt;
use std::mem::MaybeUninit;

/// A compiled expression.
pub struct Regex {
    text: String,
    /// In a box: the C library does not say that the structure may be moved.
    compiled: Box<libc::regex_t>,
}

// SAFETY: POSIX lets threads call `regexec` with the same compiled expression at once, and does not tie it to the thread that
// compiled it; nothing else is done with it before it is dropped.
unsafe impl Send for Regex {}
// SAFETY: as above.
unsafe impl Sync for Regex {}

impl Regex {
    /// Compiles an expression. The error says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        let pattern = CString::new(text).map_err(|_| "it has a NUL".to_string())?;
        let mut compiled: Box<MaybeUninit<libc::regex_t>> = Box::new(MaybeUninit::zeroed());
        // SAFETY: both pointers are valid for the call; the second is to a string that ends with a NUL.
        let code = unsafe {
            libc::regcomp(compiled.as_mut_ptr(), pattern.as_ptr(), libc::REG_EXTENDED | libc::REG_NOSUB)
        };
        if code != 0 {
            return Err(message(code, compiled.as_ptr()));
        }
        // SAFETY: regcomp has succeeded, so the structure is filled in.
        Ok(Regex { text: text.into(), compiled: unsafe { compiled.assume_init() } })
    }

    /// Whether the expression matches a part of `bytes`, up to the first NUL.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let Ok(subject) = CString::new(&bytes[..end]) else { return false };
        // SAFETY: the expression is compiled and not changed by the call; the string ends with a NUL; no places of matches are
        // asked for, so the third and fourth argument are not used.
        let code = unsafe { libc::regexec(&*self.compiled, subject.as_ptr(), 0, std::ptr::null_mut(), 0) };
        code == 0
    }
}

/// The message of the C library for an error of `regcomp`.
fn message(code: libc::c_int, compiled: *const libc::regex_t) -> String {
    let mut text = [0u8; 128];
    // SAFETY: the structure is the one that regcomp has failed with, as regerror(3) wants it, and the buffer has the length that is passed.
    unsafe { libc::regerror(code, compiled, text.as_mut_ptr().cast(), text.len()) };
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}

impl Drop for Regex {
    fn drop(&mut self) {
        // SAFETY: the expression was compiled and is freed once; nothing uses it afterwards.
        unsafe { libc::regfree(&mut *self.compiled) };
    }
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Regex({:?})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_as_those_of_grep() {
        for (text, path, wanted) in [
            (r"\.c$", "a/b.c", true),
            (r"\.c$", "a/b.cc", false),
            (r"^usr/(lib|bin)/", "usr/lib/x", true),
            (r"^usr/(lib|bin)/", "usr/sbin/x", false),
            ("a{2,3}", "xaay", true),
            ("[[:digit:]]+", "a1", true),
            ("", "anything", true),
        ] {
            assert_eq!(Regex::new(text).unwrap().matches(path.as_bytes()), wanted, "{text} {path}");
        }
        assert!(Regex::new("\u{e9}").unwrap().matches(b"\xff\xc3\xa9"));
        for invalid in ["(", "[a", "a{1", "\0"] {
            assert!(!Regex::new(invalid).unwrap_err().is_empty(), "{invalid}");
        }
    }

    #[test]
    fn threads_share_an_expression() {
        let regex = Regex::new("^[ab]+$").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..1000).for_each(|_| assert!(regex.matches(b"abba") && !regex.matches(b"abc")))
                });
            }
        });
    }
}
