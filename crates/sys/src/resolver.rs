//! The text of the C library for a host that does not exist.
//!
//! The standard library reports a failed look-up by the text of the C library alone, which depends on the library and its
//! language. Here is that text, to compare with.

use std::ffi::CStr;

/// `EAI_NONAME` of `netdb.h`, in glibc and musl.
const EAI_NONAME: libc::c_int = -2;

/// The text of the C library for a name that does not exist, as opposed to a resolver that is out of reach.
pub fn unknown_host_text() -> String {
    // SAFETY: the function takes any number, and returns a string that ends with 0 and is never freed or changed.
    let text = unsafe { CStr::from_ptr(libc::gai_strerror(EAI_NONAME)) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::net::ToSocketAddrs;

    #[test]
    fn the_standard_library_reports_this_text() {
        // A name with a space is refused without asking a server.
        let error = "no such host:80".to_socket_addrs().unwrap_err();
        assert!(error.to_string().ends_with(&super::unknown_host_text()), "{error}");
    }
}
