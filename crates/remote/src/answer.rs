//! Judges the head of an answer: whether its body is the range of the version that was asked for.
//!
//! Nothing here reads or sends. An answer that does not say exactly what was asked for is refused, because its bytes
//! would be taken for those of another place.

use crate::error::Change;
use crate::headers::{self, ContentRange};
use crate::time::parse_http;
use crate::{RemoteError, Url};
use std::ops::Range;
use std::time::{Duration, SystemTime};
use ureq::http::HeaderMap;

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AttemptError {
    /// Another attempt may succeed; not before `retry_after`, if the server says so. Zero: the server limits requests, and
    /// does not say for how long.
    Transient { error: RemoteError, retry_after: Option<Duration> },
    /// No attempt will succeed.
    Permanent(RemoteError),
}

impl AttemptError {
    pub(crate) fn transient(error: RemoteError) -> Self {
        AttemptError::Transient { error, retry_after: None }
    }

    /// The same failure; `change` makes another text of it if there was no answer.
    pub(crate) fn map_connection(self, change: impl FnOnce(String) -> String) -> Self {
        let changed = |error| match error {
            RemoteError::Connection { what } => RemoteError::Connection { what: change(what) },
            error => error,
        };
        match self {
            AttemptError::Permanent(error) => AttemptError::Permanent(changed(error)),
            AttemptError::Transient { error, retry_after } => {
                AttemptError::Transient { error: changed(error), retry_after }
            }
        }
    }

    /// A permanent failure: the answer contradicts the request.
    pub(crate) fn refused(what: impl Into<String>) -> Self {
        AttemptError::Permanent(RemoteError::Refused { what: what.into() })
    }
}

/// The header with which servers demand credentials.
pub(crate) const CHALLENGE: &str = "www-authenticate";

/// The head of an answer, as it came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
}

impl Head {
    /// The value of a header.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        self.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    }

    /// The failure of an answer whose status is `error`: transient if that may go away, after the pause that the server asks
    /// for. All clients judge by this.
    pub(crate) fn failure(&self, error: RemoteError) -> AttemptError {
        match self.status {
            // These say that the server does not do what was asked for.
            501 | 505 => AttemptError::Permanent(error),
            408 | 425 | 429 | 500..=599 => AttemptError::Transient { error, retry_after: self.retry_after() },
            _ => AttemptError::Permanent(error),
        }
    }

    /// The pause that the server asks for; not shorter than any other if it limits the number of requests.
    fn retry_after(&self) -> Option<Duration> {
        let server_now = self.date().unwrap_or_else(SystemTime::now);
        let asked = self.get("retry-after").and_then(|text| headers::retry_after(&text, server_now));
        asked.or((self.status == 429).then_some(Duration::ZERO))
    }

    /// The server's time.
    pub(crate) fn date(&self) -> Option<SystemTime> {
        self.get("date").and_then(|text| parse_http(&text))
    }

    /// All challenges, one a line.
    pub(crate) fn challenge(&self) -> Option<String> {
        let all =
            self.headers.get_all(CHALLENGE).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
        let all: Vec<_> = all.collect();
        (!all.is_empty()).then(|| all.join("\n"))
    }
}

/// How a version of an object is recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Validator {
    /// A strong entity tag, with its quotes.
    Etag(String),
    /// The time of the last change, as the server writes it.
    LastModified(String),
    /// Nothing but the length.
    None,
}

/// One version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) len_bytes: u64,
    pub(crate) validator: Validator,
}

/// The range that was asked for.
pub(crate) struct Wanted<'a> {
    pub(crate) range: Range<u64>,
    /// The version; `None` for the first request, which learns it. The range may end after the object then.
    pub(crate) version: Option<&'a Version>,
    /// All of the object is wanted, by a request without a range.
    pub(crate) is_whole: bool,
    /// Whether an object that is cut off would be noticed without its length: the name has that, or all bytes are verified.
    pub(crate) is_checked: bool,
}

/// The meaning of an answer that is not a failure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The body is this range of this version.
    Body { version: Version, range: Range<u64> },
    /// The object has no bytes.
    Empty,
    /// The object is elsewhere.
    Redirect(String),
}

/// Judges an answer.
pub(crate) fn judge(head: &Head, wanted: &Wanted<'_>) -> Result<Verdict, AttemptError> {
    let is_empty = wanted.version.is_none() && is_empty(head);
    match head.status {
        200 if wanted.is_whole => whole(head, wanted.is_checked),
        206 => partial(head, wanted),
        200 | 416 if is_empty && !wanted.is_whole => Ok(Verdict::Empty),
        200 => Err(AttemptError::Permanent(RemoteError::NoRanges)),
        301 | 302 | 303 | 307 | 308 => match head.get("location") {
            Some(location) => Ok(Verdict::Redirect(location)),
            None => Err(redirect("it has no header Location")),
        },
        412 => Err(changed("the server has another version (status 412)", Change::Refused)),
        416 if has_other_length(head, wanted) => Err(changed("it is shorter", Change::Length)),
        status => Err(head.failure(RemoteError::Status { status })),
    }
}

pub(crate) fn redirect(what: impl Into<String>) -> AttemptError {
    AttemptError::Permanent(RemoteError::Redirect { what: what.into() })
}

/// The place that an answer from `url` leads to. `https_only`: an object that was asked for by `https` does not come by
/// `http`, where others could read and replace it.
pub(crate) fn follow(url: &Url, location: &str, https_only: bool) -> Result<Url, AttemptError> {
    let next =
        url.join(location).map_err(|e| redirect(format!("'{url}' leads to a place that is no URL: {e}")))?;
    match https_only && !next.is_https() {
        false => Ok(next),
        true => Err(redirect(format!(
            "'{url}' leads to '{next}', which is not encrypted: a server behind a proxy that speaks TLS for it needs a setting, or \
             the header X-Forwarded-Proto, so that its URLs begin with https://"
        ))),
    }
}

fn changed(what: impl Into<String>, reason: Change) -> AttemptError {
    AttemptError::Permanent(RemoteError::Changed { what: what.into(), reason })
}

/// Whether a refusal of a range says that the object has another length than the known version. Servers without range
/// requests send the same status, and no length.
fn has_other_length(head: &Head, wanted: &Wanted<'_>) -> bool {
    let range = head.get("content-range").as_deref().and_then(headers::content_range);
    let total_bytes = range.and_then(|range| range.total_bytes);
    wanted.version.zip(total_bytes).is_some_and(|(version, total_bytes)| version.len_bytes != total_bytes)
}

fn is_empty(head: &Head) -> bool {
    let range = head.get("content-range").as_deref().and_then(headers::content_range);
    match head.status {
        416 => range == Some(ContentRange { first_last: None, total_bytes: Some(0) }),
        _ => head.get("content-length").as_deref() == Some("0"),
    }
}

/// Judges an answer with all of an object, whose length may be unknown: then it is that of the longest object. Its end must be
/// marked, unless the object is checked otherwise.
fn whole(head: &Head, is_checked: bool) -> Result<Verdict, AttemptError> {
    check_encoding(head)?;
    let len_bytes = head.get("content-length").and_then(|length| headers::number(length.trim()));
    if len_bytes.is_none() && !is_checked && !is_chunked(head) {
        let what = "it does not say the length of the object, so that a broken connection cannot be noticed";
        return Err(AttemptError::refused(what));
    }
    let len_bytes = len_bytes.unwrap_or(u64::MAX);
    Ok(Verdict::Body { version: Version { len_bytes, validator: validator(head) }, range: 0..len_bytes })
}

/// Whether the body comes in chunks, the last of which is marked.
fn is_chunked(head: &Head) -> bool {
    let encoding = head.get("transfer-encoding").unwrap_or_default();
    encoding.rsplit(',').next().is_some_and(|last| last.trim().eq_ignore_ascii_case("chunked"))
}

/// Judges an answer with a part of an object.
fn partial(head: &Head, wanted: &Wanted<'_>) -> Result<Verdict, AttemptError> {
    check_encoding(head)?;
    let text = head.get("content-range");
    let text = text.ok_or_else(|| AttemptError::refused("it has no header Content-Range"))?;
    let range = headers::content_range(&text);
    let Some(ContentRange { first_last: Some((first, last)), total_bytes: Some(len_bytes) }) = range else {
        return Err(AttemptError::refused(format!("Content-Range is '{}'", printable(&text))));
    };
    let version = Version { len_bytes, validator: validator(head) };
    if let Some(known) = wanted.version {
        compare(known, &version)?;
    }
    let end = wanted.range.end.min(len_bytes);
    if (first, last.checked_add(1)) != (wanted.range.start, Some(end)) {
        let (start, last_wanted) = (wanted.range.start, end.saturating_sub(1));
        let what = format!("it has bytes {first} to {last}, and {start} to {last_wanted} were asked for");
        return Err(AttemptError::refused(what));
    }
    let body_bytes = end - wanted.range.start;
    match head.get("content-length").as_deref().map(|length| headers::number(length.trim())) {
        Some(length) if length != Some(body_bytes) => {
            Err(AttemptError::refused(format!("Content-Length is not {body_bytes}, the length of its range")))
        }
        _ => Ok(Verdict::Body { version, range: first..end }),
    }
}

/// Fails if the body is compressed.
fn check_encoding(head: &Head) -> Result<(), AttemptError> {
    match head.get("content-encoding") {
        Some(encoding) if !encoding.eq_ignore_ascii_case("identity") => {
            Err(AttemptError::refused("the body is compressed"))
        }
        _ => Ok(()),
    }
}

/// The best way to recognise the version of an answer.
fn validator(head: &Head) -> Validator {
    let etag = head.get("etag").as_deref().and_then(headers::strong_etag).map(String::from);
    match (etag, head.get("last-modified")) {
        (Some(etag), _) => Validator::Etag(etag),
        (None, Some(time)) if !time.trim().is_empty() => Validator::LastModified(time.trim().to_string()),
        _ => Validator::None,
    }
}

/// Fails if an answer is not of the known version. A version without a validator is compared by its length.
fn compare(known: &Version, found: &Version) -> Result<(), AttemptError> {
    if known.len_bytes != found.len_bytes {
        let (old, new) = (known.len_bytes, found.len_bytes);
        return Err(changed(format!("it had {old} bytes, and has {new}"), Change::Length));
    }
    match (&known.validator, &found.validator) {
        (Validator::None, _) => Ok(()),
        (known, found) if known == found => Ok(()),
        (Validator::Etag(old), Validator::Etag(new)) => {
            let what = format!("its ETag was {}, and is {}", printable(old), printable(new));
            Err(changed(what, Change::Etag))
        }
        (Validator::LastModified(old), Validator::LastModified(new)) => {
            let (old, new) = (printable(old), printable(new));
            Err(changed(format!("it was last changed at '{old}', and now at '{new}'"), Change::Etag))
        }
        _ => Err(changed("the server names its version in another way", Change::Etag)),
    }
}

/// A header for a message: without control characters, and not too long.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests;
