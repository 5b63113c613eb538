//! Errors of opening and reading remote objects.

use pagefold_backing::BackingError;
use std::time::Duration;

/// Why an object was not opened, or a part of it not read. No message has a query or credentials in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// The server sends the whole object in place of a range.
    #[error(
        "the server does not answer range requests: it sends the whole object. 'pagefold image copy' downloads it; \
         or serve it by a program that knows ranges, such as nginx, Apache or Caddy"
    )]
    NoRanges,
    /// The server names neither a strong entity tag nor a time of the last change.
    #[error(
        "the server does not say which version of the object it sends (ETag or Last-Modified), so parts of two versions \
         could be mixed; it can be read with --digest"
    )]
    Unversioned,
    /// The object is not the one that was opened.
    #[error("the object has changed since it was opened: {what}{}", reason.advice())]
    Changed {
        /// The difference.
        what: String,
        /// The sign of it.
        reason: Change,
    },
    /// All bytes of the object together are not those that its name, a digest, means.
    #[error("the object has another digest: {found}, and its name is {wanted}")]
    OtherDigest {
        /// The digest of the bytes, `sha256:HEX`.
        found: String,
        /// The digest that is the object's name.
        wanted: String,
    },
    /// The answer does not fit the request.
    #[error("the server's answer is refused: {what}")]
    Refused {
        /// The contradiction.
        what: String,
    },
    /// The server refuses the request.
    #[error("the server answers with status {status}{}", meaning(*status))]
    Status {
        /// The status of HTTP.
        status: u16,
    },
    /// A store refuses the request, for a reason that its protocol tells.
    #[error("{what}")]
    Denied {
        /// The status of HTTP.
        status: u16,
        /// The reason, and what can be done.
        what: String,
    },
    /// A store does not have the object, or not for this user or platform.
    #[error("{what}")]
    Missing {
        /// The reason.
        what: String,
    },
    /// A redirect cannot be followed.
    #[error("a redirect of the server cannot be followed: {what}")]
    Redirect {
        /// The reason.
        what: String,
    },
    /// No connection, or a broken one.
    #[error("{what}")]
    Connection {
        /// The reason.
        what: String,
    },
    /// The server does not speak TLS.
    #[error("the server's answer is not TLS: a server without it is asked by http://")]
    NotTls,
    /// All tries until the deadline have failed.
    #[error("no answer within {} s: {last}", timeout.as_secs_f32())]
    TimedOut {
        /// The time that a read has.
        timeout: Duration,
        /// The last failure.
        last: String,
    },
    /// The server asks for a longer pause than the deadline leaves.
    #[error(
        "the server asks to be left alone for {} s, which is longer than the {} s of the time limit that are left: {last}",
        pause.as_secs(), left.as_secs_f32().ceil()
    )]
    Busy {
        /// The pause that the server asks for.
        pause: Duration,
        /// The time that the read had left.
        left: Duration,
        /// The last failure.
        last: String,
    },
    /// The set-up of the client failed.
    #[error("{what}")]
    SetUp {
        /// The reason.
        what: String,
    },
}

/// The sign that an object is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Another entity tag, or another time of the last change.
    Etag,
    /// The same, from one of several servers that do not agree about it.
    SeveralTags,
    /// The server refuses the condition with the version that it has named itself (status 412).
    Refused,
    /// Another length.
    Length,
    /// Other bytes in the same place.
    Bytes,
}

impl Change {
    /// Whether another request may be answered with the right version.
    pub(crate) fn may_pass(self) -> bool {
        matches!(self, Change::Etag | Change::Refused)
    }

    fn advice(self) -> &'static str {
        match self {
            Change::Etag | Change::Refused => {
                ". If it was not replaced, several servers have its name and describe it differently: with --digest its \
                 bytes decide"
            }
            Change::SeveralTags => {
                ". Several servers have its name and describe it differently: with --digest its bytes decide"
            }
            Change::Length | Change::Bytes => "",
        }
    }
}

impl RemoteError {
    /// Whether the object does not exist, or not for this user.
    pub fn is_missing(&self) -> bool {
        matches!(self, RemoteError::Status { status: 404 | 410 } | RemoteError::Missing { .. })
    }

    /// Whether the server may have the object, and not know range requests.
    pub(crate) fn may_lack_ranges(&self) -> bool {
        matches!(self, RemoteError::NoRanges | RemoteError::Status { status: 400 | 416 | 501 })
    }

    /// Whether the store does not let this user read the object.
    pub fn is_denied(&self) -> bool {
        matches!(
            self,
            RemoteError::Status { status: 401 | 403 } | RemoteError::Denied { status: 400..=403 | 409, .. }
        )
    }

    /// The refusal of a store, with the code of its protocol, and what can be done.
    pub(crate) fn refusal(status: u16, code: Option<&str>, advice: &str) -> Self {
        let shown = code.map(|code| format!(" ({code})")).unwrap_or_default();
        let what = format!("the store answers with status {status}{shown}; {advice}");
        match status {
            // That an object is missing is a fact about a bucket that is there.
            404 if !matches!(code, Some("NoSuchBucket" | "ContainerNotFound")) => {
                RemoteError::Missing { what }
            }
            _ => RemoteError::Denied { status, what },
        }
    }

    /// The error of a read of the object `name`.
    pub(crate) fn of_read(self, name: &str) -> BackingError {
        let what = format!("'{name}': {self}");
        match self {
            RemoteError::Changed { .. } => BackingError::Mismatch { what },
            _ => BackingError::Unreachable { what },
        }
    }
}

fn meaning(status: u16) -> &'static str {
    match status {
        401 | 403 => ": access is denied; credentials can be given in PAGEFOLD_HTTP_AUTHORIZATION",
        429 => ": it limits the number of requests",
        400 | 416 | 501 => {
            ": it may not know range requests; 'pagefold image copy' tries to download the whole object"
        }
        404 | 410 => ": there is no such object",
        _ => "",
    }
}
