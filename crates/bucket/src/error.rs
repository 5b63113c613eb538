//! [`BucketError`]: what a caller can do about a failure decides its kind.

use object_store::Error;
use std::error::Error as _;

/// The longest part of a store's message that is shown, characters.
const MAX_SHOWN: usize = 300;

/// Why a request to a bucket failed. Messages have no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// The settings or the name cannot be used.
    #[error("{what}")]
    SetUp {
        /// The reason.
        what: String,
    },
    /// There is no such object, or no such bucket.
    #[error("{what}")]
    Missing {
        /// The reason.
        what: String,
    },
    /// The object is longer than the caller takes.
    #[error("it is longer than {max_bytes} bytes")]
    TooLong {
        /// The most bytes.
        max_bytes: u64,
    },
    /// The condition of a write does not hold: the object is another one, or there is one. Nothing was written.
    #[error("the object was changed by another writer")]
    Changed,
    /// The store does not let this user do it.
    #[error("{what}")]
    Denied {
        /// The reason.
        what: String,
    },
    /// There was no answer, or another refusal, as that of a write beside another one. A write may have been done, or may still
    /// be done.
    #[error("{what}")]
    Failed {
        /// The reason.
        what: String,
    },
    /// The caller has given the upload up.
    #[error("the upload was given up")]
    GivenUp,
    /// The stream that is uploaded cannot be read.
    #[error("reading what is uploaded: {what}")]
    Input {
        /// The reason.
        what: String,
    },
}

impl From<Error> for BucketError {
    fn from(error: Error) -> Self {
        let text = innermost(&error);
        let what = shown(&text);
        match error {
            Error::AlreadyExists { .. } if is_beside_another(&text) => BucketError::Failed { what },
            Error::NotFound { .. } => BucketError::Missing { what },
            Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. } => {
                BucketError::Changed
            }
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => BucketError::Denied { what },
            Error::InvalidPath { .. } | Error::NotImplemented { .. } | Error::NotSupported { .. } => {
                BucketError::SetUp { what }
            }
            _ => BucketError::Failed { what },
        }
    }
}

/// The innermost message, which has no URL.
fn innermost(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}

/// The status line and the document of a refusal.
fn refusal(text: &str) -> Option<(&str, &str)> {
    let (_, status) = text.split_once("non-2xx status code: ")?;
    Some(status.split_once(": ").unwrap_or((status, "")))
}

/// Whether the store refused a request because it knows no such range: the object is empty, or shorter.
pub(crate) fn is_beyond_end(error: &Error) -> bool {
    refusal(&innermost(error)).is_some_and(|(status, _)| status.starts_with("416"))
}

/// Whether a write was refused because another one of the same object is on its way, perhaps an earlier one of this client.
/// Azure says with the same status that the object is there.
fn is_beside_another(text: &str) -> bool {
    let is_there = |document| element(document, "Code") == Some("BlobAlreadyExists");
    refusal(text).is_some_and(|(status, document)| status.starts_with("409") && !is_there(document))
}

/// An innermost message as users see it: with the code of the store's protocol in place of its document.
fn shown(text: &str) -> String {
    if let Some((status, document)) = refusal(text) {
        let code = element(document, "Code").map_or(String::new(), |code| format!(" ({code})"));
        let advice = advice(status, element(document, "Code"));
        return format!("the store answers with status {status}{code}{advice}");
    }
    if text.contains("redirect") {
        return "the bucket is in another region; set AWS_REGION".to_string();
    }
    text.chars().filter(|c| !c.is_control()).take(MAX_SHOWN).collect()
}

fn advice(status: &str, code: Option<&str>) -> &'static str {
    match (status.get(..3), code) {
        (_, Some("AuthorizationHeaderMalformed" | "PermanentRedirect")) => {
            "; the bucket is in another region: set AWS_REGION"
        }
        (_, Some("NoSuchBucket" | "ContainerNotFound")) => "; there is no such bucket",
        (Some("301" | "307"), _) => "; the bucket is in another region: set AWS_REGION",
        (Some("401" | "403"), _) => {
            "; the login that reads images and saved disks is used for writing too: it must be allowed to put, get, list and \
             delete objects"
        }
        (Some("501"), _) => "; the store does not know conditional writes, which saved disks need",
        _ => "",
    }
}

/// The text of an element of XML, if it is a word.
fn element<'a>(document: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = document.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once('<')?;
    let is_word = (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric());
    is_word.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(status: &str, document: &str) -> String {
        let source = format!("Server returned non-2xx status code: {status}: {document}").into();
        BucketError::from(Error::Generic { store: "S3", source }).to_string()
    }

    #[test]
    fn a_conflict_is_no_other_writer() {
        let of = |text: &str| {
            let source = format!("Server returned non-2xx status code: {text}").into();
            BucketError::from(Error::AlreadyExists { path: "k".into(), source })
        };
        let conflict = of("409 Conflict: <Error><Code>ConditionalRequestConflict</Code></Error>");
        assert!(matches!(&conflict, BucketError::Failed { what } if what.contains("409")), "{conflict}");
        assert!(matches!(of("409 Conflict"), BucketError::Failed { .. }));
        assert_eq!(of("409 Conflict: <Error><Code>BlobAlreadyExists</Code></Error>"), BucketError::Changed);
        assert_eq!(of("412 Precondition Failed: <Code>409</Code>"), BucketError::Changed);
    }

    #[test]
    fn messages_have_the_code_and_not_the_document() {
        let document = "<?xml?><Error><Code>SlowDown</Code><Message>\u{1b}[2J</Message></Error>";
        assert_eq!(shown("503 Busy", document), "the store answers with status 503 Busy (SlowDown)");
        assert_eq!(shown("418 Teapot", "<Code>a b</Code>"), "the store answers with status 418 Teapot");
        assert!(shown("404 Not Found", "<Code>NoSuchBucket</Code>").ends_with("there is no such bucket"));
    }
}
